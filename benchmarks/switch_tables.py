"""The cost of table entries on the ebpf target: the time of lookups and of writes, and the memory.

    python benchmarks/switch_tables.py [--entries 100000] [--seconds 1] [--rounds 5]

Needs root. One switch in a separate network namespace, with benchmarks/programs/tables.p4. Methods:

* a frame: one CPU sends frames of 64 bytes as fast as possible. The result is the time per frame. There are
  16,384 different frames, each with the key of a random entry. Exact and LPM tables have 10 or --entries
  entries, in turns in each round. Ternary tables have different numbers of masks. 60 % of the prefixes are
  /24, the others /16 to /32.
* writing: a separate process writes entries by P4Runtime over the loopback, with 100 entries per Write or
  with 1. The result is entries/s.
* memory: the resident set of the server's process with all entries.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from finsy.proto import p4r  # noqa: E402

from benchmarks.kit.bare_switch import PROGRAMS, Blaster, P4Switch, namespace, p4_switch, trial  # noqa: E402
from benchmarks.kit.results import bound, head, machine, row  # noqa: E402
from tests.support.switch_kit import (  # noqa: E402
    Client,
    Names,
    Namespace,
    delete,
    insert,
    read_p4info,
)

TABLES = (PROGRAMS / "tables.json", PROGRAMS / "tables.p4info.txtpb")
TYPES = {"exact": 0x88B5, "prefix": 0x88B6, "ternary": 0x88B7}
FEW, FRAMES, BATCH, SINGLE = 10, 16384, 100, 2000
MASKS = (1, 16, 64, 128)
Rule = tuple[int, int]  # a key, and how many of its bits count


def rules(kind: str, count: int) -> list[Rule]:
    """Return ``count`` different entries, the same at each call."""
    rng = random.Random(f"{kind} {count}")
    found: dict[Rule, None] = {}
    while len(found) < count:
        length = 32
        if kind == "prefix":
            length = 24 if rng.random() < 0.6 else rng.randint(16, 32)
        found[rng.getrandbits(length) << 32 - length, length] = None
    return list(found)


def entry(names: Names, kind: str, rule: Rule, number: int, masks: int) -> p4r.TableEntry:
    key, length = rule
    match: dict[str, object] = {"hdr.key.key": (key, length) if kind == "prefix" else key}
    priority = 0
    if kind == "ternary":  # entries have `masks` different masks of the second key
        mask = number % masks + 1
        match = {"hdr.key.key": (key, "&", 0xFFFFFFFF), "hdr.key.other": (mask, "&", mask)}
        priority = number % masks + 1
    return names.entry(f"I.{kind}_table", match, "I.forward", 2, priority=priority)


def frames(kind: str, chosen: Sequence[Rule], masks: int) -> list[bytes]:
    """Return frames, each with the key of a random entry."""
    rng = random.Random(7)
    out = []
    for _ in range(FRAMES):
        number = rng.randrange(len(chosen))
        key, length = chosen[number]
        key |= rng.getrandbits(32 - length) if length < 32 else 0
        other = number % masks + 1
        head_bytes = b"\x02" * 6 + b"\x04" * 6 + TYPES[kind].to_bytes(2, "big")
        out.append(head_bytes + key.to_bytes(4, "big") + other.to_bytes(4, "big") + bytes(42))
    return out


def entries(kind: str, chosen: Sequence[Rule], masks: int = 1) -> list[p4r.TableEntry]:
    """Return entries in the form that a P4Runtime client writes."""
    names = Names(read_p4info(TABLES[1]))
    return [entry(names, kind, rule, number, masks) for number, rule in enumerate(chosen)]


def batches(updates: Sequence[p4r.Update], size: int) -> Iterator[Sequence[p4r.Update]]:
    for at in range(0, len(updates), size):
        yield updates[at : at + size]


def write(address: str, kind: str, count: int) -> dict[str, float]:
    """Write SINGLE entries one by one, then the rest in batches. Return the entries/s of both ways."""
    updates = [insert(e) for e in entries(kind, rules(kind, count))]
    client = Client(address, 4, election=2)
    client.become_primary()
    started = time.perf_counter()
    for one in updates[:SINGLE]:
        client.write(one)
    between = time.perf_counter()
    for many in batches(updates[SINGLE:], BATCH):
        client.write(*many)
    ended = time.perf_counter()
    client.close()
    return {
        "single": min(SINGLE, count) / (between - started),
        "batched": max(count - SINGLE, 0) / (ended - between),
    }


def written(ns: Namespace, switch: P4Switch, kind: str, count: int) -> dict[str, float]:
    """Call `write` in a separate process in the switch's namespace."""
    words = ["ip", "netns", "exec", ns.name, sys.executable, __file__, "--write", switch.address]
    words += ["--kind", kind, "--entries", str(count)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


class Sender:
    """Sends frames to a switch's first port."""

    def __init__(self, ns: Namespace) -> None:
        self.ns = ns

    @contextlib.contextmanager
    def of(self, sent: Sequence[bytes]) -> Iterator[Blaster]:
        """Return a process that sends these frames."""
        with contextlib.closing(self.ns.packet_socket("h1")) as on:
            blaster = Blaster(on, sent, min(os.sched_getaffinity(0)))
            try:
                yield blaster
            finally:
                blaster.close()

    def ns_per_frame(self, blaster: Blaster, seconds: float) -> float:
        """Return the time per frame in ns. Raise RuntimeError if a frame was lost."""
        done = trial(self.ns, [(blaster, "h2")], seconds)
        if done.lost:
            raise RuntimeError(f"{done.lost} of {done.sent} frames were lost: an entry is missing")
        return 1e9 / done.per_s


def many_and_few(options: argparse.Namespace, directory: Path) -> bool:
    """Measure exact and LPM tables: writes, memory and lookups. Return True if all bounds are kept."""
    kept = []
    with contextlib.ExitStack() as stack:
        sides = []
        for name in ("few", "many"):
            ns = stack.enter_context(namespace())
            switch = stack.enter_context(p4_switch("ebpf", ns, 2, TABLES, directory / name))
            sides.append((ns, switch))
        (few_ns, few), (many_ns, many) = sides
        empty = many.resident_bytes()
        head()
        for kind in ("exact", "prefix"):
            rates = written(many_ns, many, kind, options.entries)
            resident = many.resident_bytes()
            kept.append(bound(f"{kind}: batches of {BATCH}, entries/s", rates["batched"], least=5000))
            kept.append(bound(f"{kind}: one by one, entries/s", rates["single"], least=1000))
            said = f"resident MB with {options.entries} {kind}"
            kept.append(bound(said, (resident - (empty if kind == "prefix" else 0)) / 1e6, most=200))
            empty = resident
            few.client.write(*(insert(e) for e in entries(kind, rules(kind, FEW))))
            few_s, many_s = Sender(few_ns), Sender(many_ns)
            with (
                few_s.of(frames(kind, rules(kind, FEW), 1)) as a,
                many_s.of(frames(kind, rules(kind, options.entries), 1)) as b,
            ):
                costs: tuple[list[float], list[float]] = ([], [])
                for _ in range(options.rounds):
                    costs[0].append(few_s.ns_per_frame(a, options.seconds))
                    costs[1].append(many_s.ns_per_frame(b, options.seconds))
            row(f"{kind}, {FEW} entries", options.rounds, costs[0], "ns")
            row(f"{kind}, {options.entries} entries", options.rounds, costs[1], "ns")
            ratio = statistics.median(b / a for a, b in zip(*costs, strict=True))
            kept.append(bound(f"{kind}: {options.entries} / {FEW} entries", ratio, most=1.3))
    return all(kept)


def ternary_curve(options: argparse.Namespace, directory: Path) -> None:
    """Measure a ternary table by the number of its masks and of its entries."""
    with namespace() as ns, p4_switch("ebpf", ns, 2, TABLES, directory) as switch:
        sender = Sender(ns)
        for masks, count in [(m, 1000) for m in MASKS] + [(MASKS[0], 20000), (MASKS[-1], 20000)]:
            chosen = rules("exact", count)
            there = entries("ternary", chosen, masks)
            for part in batches([insert(e) for e in there], BATCH):
                switch.client.write(*part)
            with sender.of(frames("ternary", chosen, masks)) as blaster:
                costs = [sender.ns_per_frame(blaster, options.seconds) for _ in range(options.rounds)]
            row(f"ternary, {masks} masks, {count} entries", options.rounds, costs, "ns")
            for part in batches([delete(e) for e in there], BATCH):
                switch.client.write(*part)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=1.0, help="of sending, per round")
    parser.add_argument("--rounds", type=int, default=5)
    for hidden in ("--write", "--kind"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        print(json.dumps(write(options.write, options.kind, options.entries)))
        return 0
    if os.geteuid() != 0:
        print("switch_tables: needs root", file=sys.stderr)
        return 3
    print(f"tables of the ebpf target, frames of 64 bytes; {machine()}")
    with tempfile.TemporaryDirectory() as directory:
        kept = many_and_few(options, Path(directory))
        ternary_curve(options, Path(directory) / "ternary")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
