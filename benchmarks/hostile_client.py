"""Test a NIC service with a hostile program that writes random ring entries.

    python benchmarks/hostile_client.py [--entries 1000000] [--seed 0] [--target ebpf]

Needs root and a C compiler; brings `tiny` up under another prefix. A program on h0
(`tests/support/programs/hostile.py`) fills its rings with random or nearly correct entries, and with
wrong counters, until the service has read --entries entries. At the same time, pairs of correct programs on
the same host write again and again. Bounds: the service ends all hostile sessions and no other; each correct
pair ends without a wrong byte; the service does not restart, and it does not open more and more descriptors.
The service's memory is printed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from benchmarks.kit.results import bound, machine  # noqa: E402
from tests.support.command import up  # noqa: E402
from tests.support.hostile_client import attack  # noqa: E402
from tests.support.native_programs import built  # noqa: E402

MESSAGES = 1000


def main() -> int:
    parser = argparse.ArgumentParser(description="Attacks a NIC service through its rings.")
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="ebpf")
    options = parser.parse_args()
    print(machine())
    with built(pair="pair") as programs, up("tiny", options.target) as fabric:
        began_s = time.monotonic()
        found = attack(fabric, programs["pair"], options.entries, options.seed, MESSAGES)
        took_s = time.monotonic() - began_s
    print(
        f"{found.entries} entries, {found.queue_pairs} queue pairs, {found.sessions} sessions, {took_s:.0f} s"
    )
    print(f"{found.sound_runs} pairs of sound programs, {MESSAGES} messages each, every byte right")
    before, after = (each / 2**20 for each in found.resident_bytes)
    print(f"the service's memory: {before:.1f} MiB before, {after:.1f} MiB after")
    kept = bound("hostile sessions that did not end", found.sessions - found.ended, most=0)
    first, last = found.descriptors
    return 0 if bound("descriptors more", last - first, most=0) and kept else 1


if __name__ == "__main__":
    sys.exit(main())
