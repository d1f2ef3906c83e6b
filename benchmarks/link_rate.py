"""Measure whether a switch's port keeps its link's rate, and from which rate on the CPU is the limit.

    python benchmarks/link_rate.py [--seconds 3] [--payload 4096] [--offer 1.2] [--rates 10,50,...] [--json]

Needs root. One ebpf switch in a separate namespace: the controller's entries are in its tables, and its port
has the testbed's qdisc. Two senders, each a process on a separate CPU, together offer 1.2 times the link's
rate in trimmable frames of MRC to the other two ports. Rates count whole Ethernet frames with their headers,
but not preamble, gap and checksum.

* offered, achieved: the bytes into the switch, and the bytes that arrived at the far end of the link, by the
  interfaces' counters. `kernel alone` is the same without an entry in the table port_queue. Then only the
  qdisc limits the rate: it drops the excess.
* CPU: the busy share of all CPUs during the measurement, from /proc/stat.
* the last row: the same senders as fast as possible, without a qdisc. No link can be faster on this machine.

Ends with exit code 1 if a rate of at most half of the last row's rate is missed by more than 2 %.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.kit.paced_sender import PacedSender  # noqa: E402
from mrclab.p4src.contract import FRAME_OVERHEAD_BYTES, TRIMMABLE_DSCP  # noqa: E402
from mrclab.topologies import LinkProfile  # noqa: E402
from tests.support.merge import Merge  # noqa: E402
from tests.support.switch_kit import JSON, P4INFO, Namespace, mrc_frame, read_p4info, sid  # noqa: E402

RATES_MBPS = (10, 50, 100, 200, 500, 1000, 2000)
MTU = 4300
TOLERANCE = 0.02
ENOUGH = 1.1  # with a smaller offer the link is idle at times
SETTLE_S = 0.3


@dataclass(frozen=True)
class Row:
    """The results of one run. ``trimmed`` and ``cpu`` are shares from 0 to 1."""

    rate_bps: int
    offered_bps: float
    achieved_bps: float
    trimmed: float
    cpu: float

    @property
    def error(self) -> float:
        """The difference between achieved rate and link's rate, as a share of the link's rate."""
        return self.achieved_bps / self.rate_bps - 1


def received(counters: TextIO) -> dict[str, int]:
    """Return the bytes that came in on each interface."""
    counters.seek(0)
    lines = [line.partition(":") for line in counters.read().splitlines()[2:]]
    return {name.strip(): int(rest.split()[0]) for name, _, rest in lines}


def cpu_ticks() -> tuple[int, int]:
    """Return the busy ticks and all ticks of all CPUs since boot."""
    fields = [int(f) for f in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return sum(fields) - idle, sum(fields)


def run(rate_bps: int, payload: int, seconds: float, offer: float, *, shaped: bool, programmed: bool) -> Row:
    """Measure one rate. If `offer` is 0, the senders send as fast as possible."""
    ns = Namespace()
    try:
        with tempfile.TemporaryDirectory() as directory:
            profile = LinkProfile(rate_bps, 0, MTU)
            info, data = read_p4info(P4INFO), JSON.read_bytes()
            with Merge(
                ns, Path(directory), info, data, profile, shaped=shaped, programmed=programmed
            ) as merge:
                return measure(merge, rate_bps, payload, seconds, offer)
    finally:
        ns.delete()


def measure(merge: Merge, rate_bps: int, payload: int, seconds: float, offer: float) -> Row:
    frame = mrc_frame(sid(1, 3), payload, dscp=TRIMMABLE_DSCP)
    interval_ns = 2 * len(frame) * 8e9 / (rate_bps * offer) if offer else 0.0
    merge.h[3].close()  # no process needs to receive the frames
    counters = merge.ns.run(lambda: open("/proc/thread-self/net/dev"))  # noqa: SIM115
    merge.stack.callback(counters.close)
    cpus = sorted(os.sched_getaffinity(0))
    senders = [PacedSender(merge.h[i], frame, interval_ns, cpus[i % len(cpus)]) for i in (1, 2)]
    marks = []
    for pause in (SETTLE_S, seconds):
        time.sleep(pause)
        now, seen = time.monotonic(), received(counters)
        marks.append((now, seen["s1"] + seen["s2"], seen["h3"], cpu_ticks()))
    sent = sum(sender.stop() for sender in senders)
    (t0, in0, out0, cpu0), (t1, in1, out1, cpu1) = marks
    bps = 8 / (t1 - t0)
    trimmed = merge.count("trim.trimmed", 3) / sent
    busy = (cpu1[0] - cpu0[0]) / (cpu1[1] - cpu0[1])
    return Row(rate_bps, (in1 - in0) * bps, (out1 - out0) * bps, trimmed, busy)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--payload", type=int, default=4096)
    parser.add_argument("--offer", type=float, default=1.2)
    parser.add_argument("--rates", default=",".join(map(str, RATES_MBPS)), help="in Mbit/s")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("link_rate: needs root", file=sys.stderr)
        return 3
    rates = [int(float(r) * 1e6) for r in options.rates.split(",")]
    how = (options.payload, options.seconds, options.offer)
    through = {r: run(r, *how, shaped=True, programmed=True) for r in rates}
    alone = {r: run(r, *how, shaped=True, programmed=False) for r in rates}
    flat_out = run(rates[-1], options.payload, options.seconds, 0.0, shaped=False, programmed=False)
    fastest = flat_out.achieved_bps
    possible = [r for r in rates if 2 * r <= fastest]
    missed = [r for r in possible if abs(through[r].error) > TOLERANCE]
    starved = [r for r in missed if through[r].offered_bps < ENOUGH * r]
    if options.json:
        print(
            json.dumps(
                {
                    "through": [asdict(r) for r in through.values()],
                    "alone": [asdict(r) for r in alone.values()],
                    "flat_out": asdict(flat_out),
                    "missed_bps": missed,
                },
                indent=1,
            )
        )
        return 1 if missed else 0
    print(f"kernel {platform.release()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; ", end="")
    whole = options.payload + FRAME_OVERHEAD_BYTES
    print(f"frames of {whole} bytes, windows of {options.seconds:g} s, rates in Mbit/s")
    print(f"{'rate':>8} {'offered':>9} {'achieved':>9} {'error':>8} {'trimmed':>8} {'CPU':>5}", end="")
    print(f" | kernel alone: {'achieved':>9} {'error':>8} {'CPU':>5}")
    for r, b in zip(through.values(), itertools.chain(alone.values()), strict=True):
        print(f"{r.rate_bps / 1e6:8.0f} {r.offered_bps / 1e6:9.2f} {r.achieved_bps / 1e6:9.2f}", end="")
        print(f" {r.error:+8.2%} {r.trimmed:8.1%} {r.cpu:5.0%}", end="")
        print(f" | {'':13} {b.achieved_bps / 1e6:9.2f} {b.error:+8.2%} {b.cpu:5.0%}")
    per_second = fastest / 8 / (options.payload + FRAME_OVERHEAD_BYTES)
    print(
        f"flat out, no qdisc: {fastest / 1e6:.0f} Mbit/s = {per_second:.0f} frames/s, CPU {flat_out.cpu:.0%}"
    )
    verdict = "met" if not missed else "MISSED at " + ", ".join(f"{r / 1e6:g}" for r in missed) + " Mbit/s"
    if starved:
        verdict += ", but something else kept the senders from offering more than the rate: run it again"
    print(f"within {TOLERANCE:.0%} up to half of what the senders can do: {verdict}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
