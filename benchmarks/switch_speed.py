"""Measure how fast one switch forwards, compared with BMv2, with a hand-written BPF program, and on two CPUs.

    python benchmarks/switch_speed.py [--seconds 1] [--rounds 5] [--trips 2000]

Needs root; the comparison with BMv2 needs simple_switch_grpc on PATH. Each switch has a separate network
namespace. The switches take turns, so that other load on the machine affects all of them. Frames have 154
bytes and a segment list of three uSIDs. The switch takes one uSID off. Methods:

* loss-free packets/s: one process sends from one CPU for --seconds a trial, 64 frames per system call,
  without a qdisc. The frames behind the switch are counted. The first trial sends as fast as possible. If a
  frame was lost, a bisection in eight steps finds the highest rate without loss. Each round gives one result.
  `most` is the output rate of the first trial, even with losses. BMv2's egress queues have room for only 64
  packets, so on two busy CPUs BMv2 loses frames long before its highest rate.
* added latency: one process sends a frame to one port and waits for it behind the other port, --trips times a
  round. The result is the median minus the median of a veth pair without a switch in the same round.
* two CPUs: two such senders on separate ports and CPUs, compared with each sender alone.

`switch program` is the program in p4src, with counters, faults and queues. `un.p4` and the hand-written
`un.ll` (benchmarks/programs) only take a uSID off and forward (uN).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.kit.bare_switch import (  # noqa: E402
    MACS,
    NEXT,
    OWN,
    PROGRAMS,
    Blaster,
    Trial,
    hand_written,
    namespace,
    p4_switch,
    trial,
)
from benchmarks.kit.results import bound, head, machine, row  # noqa: E402
from mrclab.switches.target import select_target  # noqa: E402
from tests.support.switch_kit import (  # noqa: E402
    JSON,
    P4INFO,
    Client,
    Names,
    Namespace,
    insert,
    ipv6_frame,
    read_p4info,
    sid,
)

SWITCH_PROGRAM = (JSON, P4INFO)
UN = (PROGRAMS / "un.json", PROGRAMS / "un.p4info.txtpb")
CONTROLS = {JSON: "MrcIngress.micro_segment.", UN[0]: "I."}
BISECTIONS = 8
FRAMES = 256
BEHIND = 3  # the last uSID of the list, which the switch does not take off


@dataclass
class Contender:
    """A switch to measure, a sender on its first port, and the results."""

    name: str
    ns: Namespace
    blaster: Blaster
    per_s: list[float] = field(default_factory=list)
    most_per_s: list[float] = field(default_factory=list)
    latency_us: list[float] = field(default_factory=list)


def program_ways(client: Client, program: tuple[Path, Path], ways: dict[int, int]) -> None:
    """Write entries: the switch takes its uSID off, and the next uSID in the list selects the port."""
    names, control = Names(read_p4info(program[1])), CONTROLS[program[0]]
    field_name = "hdr.ipv6.dst_addr"
    client.write(insert(names.entry(f"{control}my_sid", {field_name: (sid(OWN), 48)}, f"{control}un")))
    for usid, port in ways.items():
        match = {field_name: (sid(usid), 48)}
        entry = names.entry(f"{control}next_hop", match, f"{control}forward", port, *reversed(MACS))
        client.write(insert(entry))


def frames(next_usid: int = NEXT) -> list[bytes]:
    """Return the frames to send."""
    return [ipv6_frame(sid(OWN, next_usid, BEHIND), fill=i) for i in range(FRAMES)]


def loss_free(once: Callable[[float], Trial]) -> tuple[float, float]:
    """Return the highest rate without a lost frame, and the highest output rate, in packets/s.

    `once` runs a trial at a rate; 0 means as fast as possible.
    """
    flat_out = tried = once(0)
    if tried.lost == 0:
        return tried.per_s, tried.per_s
    low, high = 0.0, tried.per_s * 1.5
    for _ in range(BISECTIONS):
        rate = (low + high) / 2
        tried = once(rate)
        low, high = (tried.per_s, high) if tried.lost == 0 else (low, rate)
    return low, flat_out.per_s


def way(ns: Namespace, trips: int) -> float:
    """Return the median time from before a frame is sent at h1 until it is read at h2, in us."""
    out, back = ns.packet_socket("h1"), ns.packet_socket("h2")
    frame, clock = frames()[0], time.perf_counter_ns
    took = []
    gc.disable()
    for _ in range(trips):
        started = clock()
        out.send(frame)
        back.recv(2048)
        took.append(clock() - started)
    gc.enable()
    out.close()
    back.close()
    return statistics.median(took) / 1e3


@contextlib.contextmanager
def contenders(directory: Path, targets: list[str]) -> Iterator[list[Contender]]:
    """Start all switches, and yield them while they run."""
    with contextlib.ExitStack() as stack:

        def made(name: str, ns: Namespace) -> Contender:
            blaster = Blaster(ns.packet_socket("h1"), frames(), min(os.sched_getaffinity(0)))
            stack.callback(blaster.close)
            return Contender(name, ns, blaster)

        out = []
        for target in targets:
            for what, program in (("switch program", SWITCH_PROGRAM), ("un.p4", UN)):
                ns = stack.enter_context(namespace())
                log = directory / f"{target}-{program[0].stem}"
                switch = stack.enter_context(p4_switch(target, ns, 2, program, log))
                program_ways(switch.client, program, {NEXT: 2})
                out.append(made(f"{target}, {what}", ns))
        ns = stack.enter_context(namespace())
        stack.enter_context(hand_written(ns, 2))
        out.append(made("by hand, un.ll", ns))
        yield out


def compare(options: argparse.Namespace, directory: Path) -> bool:
    targets = ["ebpf"]
    missing = select_target("bmv2").available()
    if missing is None:
        targets.append("bmv2")
    else:
        print(f"(without BMv2: {missing})")
    bare: list[float] = []
    with contenders(directory, targets) as found, namespace() as cable:
        cable.pair("h1", "h2")
        for _ in range(options.rounds):
            bare.append(way(cable, options.trips))
            for c in found:
                c.latency_us.append(way(c.ns, options.trips))
        for _ in range(options.rounds):
            for c in found:
                ways = [(c.blaster, "h2")]
                free, most = loss_free(lambda rate, c=c, w=ways: trial(c.ns, w, options.seconds, rate))
                c.per_s.append(free)
                c.most_per_s.append(most)
    by_name = {c.name: c for c in found}
    head()
    for c in found:
        row(f"loss-free, {c.name}", options.rounds, c.per_s, "packets/s")
    for c in found:
        row(f"most, {c.name}", options.rounds, c.most_per_s, "packets/s")
    row("bare veth pair", options.rounds, bare, "us")
    added = {c.name: [a - b for a, b in zip(c.latency_us, bare, strict=True)] for c in found}
    for c in found:
        row(f"added latency, {c.name}", options.rounds, added[c.name], "us")

    def rate(name: str) -> float:
        return statistics.median(by_name[name].per_s)

    hand = rate("by hand, un.ll")
    kept = [
        bound(f"by hand / {what}, packets/s", hand / rate(f"ebpf, {what}"), most=2)
        for what in ("un.p4", "switch program")
    ]
    if "bmv2" in targets:
        for what in ("switch program", "un.p4"):
            ours, theirs = f"ebpf, {what}", f"bmv2, {what}"
            kept.append(bound(f"ebpf / bmv2, {what}, packets/s", rate(ours) / rate(theirs), least=8))
            late = statistics.median(added[ours]) / statistics.median(added[theirs])
            kept.append(bound(f"ebpf / bmv2, {what}, latency", late, most=1 / 20))
    return all(kept)


def two_cpus(options: argparse.Namespace, directory: Path) -> bool:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        print("two CPUs: this machine has one")
        return True
    alone: list[float] = []
    together: list[float] = []
    with namespace() as ns, p4_switch("ebpf", ns, 4, SWITCH_PROGRAM, directory) as switch:
        program_ways(switch.client, SWITCH_PROGRAM, {NEXT: 2, NEXT + 2: 4})
        first = Blaster(ns.packet_socket("h1"), frames(), cpus[0])
        second = Blaster(ns.packet_socket("h3"), frames(NEXT + 2), cpus[1])
        ways = [(first, "h2"), (second, "h4")]
        for _ in range(options.rounds):
            each = [trial(ns, [w], options.seconds).per_s for w in ways]
            alone.append(statistics.mean(each))
            together.append(trial(ns, ways, options.seconds).per_s)
        for blaster, _ in ways:
            blaster.close()
    row("one CPU", options.rounds, alone, "packets/s", "mean of the two")
    row("two CPUs at once", options.rounds, together, "packets/s")
    ratios = [b / a for a, b in zip(alone, together, strict=True)]
    return bound("two CPUs / one", statistics.median(ratios), least=1.7)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=1.0, help="of sending, per trial")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trips", type=int, default=2000, help="frames per round of latency")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("switch_speed: needs root", file=sys.stderr)
        return 3
    print(f"one switch, frames of 154 bytes; {machine()}")
    with tempfile.TemporaryDirectory() as directory:
        kept = compare(options, Path(directory))
        kept = two_cpus(options, Path(directory) / "two") and kept
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
