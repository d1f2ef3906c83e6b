"""Measure how fast the simulator is, and how soon MRC recovers in it at 800 Gbit/s.

    python benchmarks/virtual_time.py permutation [--hosts 64] [--megabytes 2] [--spread 1]
    python benchmarks/virtual_time.py recovery [--evs 64] [--cuts 100]
    python benchmarks/virtual_time.py memory [--evs 64] [--queue-pairs 1000]

* `permutation`: every host sends to one other host, without faults. Reports CPU time per data packet, the
  slowest flow, and the packets that were wrongly counted as lost.
* `recovery`: a stream runs between two NICs of 8 x 100 Gbit/s, limited only by NSCC. T0-T1 links are cut
  silently, one after another. Reports the times from each cut to four moments: the first lost packet is sent,
  a path is retired, the last packet is sent onto the cut link, copies of all lost packets have arrived.
* `memory`: connects queue pairs that send nothing. Reports the memory per queue pair, without the memory that
  all queue pairs share.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import statistics
import sys
import time
import tracemalloc
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from benchmarks.kit.loads import fabric_of  # noqa: E402
from benchmarks.kit.results import machine  # noqa: E402
from mrclab.controller.queues import QueuePolicy  # noqa: E402
from mrclab.hosts import compiled  # noqa: E402
from mrclab.hosts.mrc import Endpoint  # noqa: E402
from mrclab.hosts.mrc.events import EvRetired, SpuriousLoss  # noqa: E402
from mrclab.hosts.nic.routes import nic_addresses, remote_paths  # noqa: E402
from mrclab.hosts.options import datacenter_mrc, idle_rtt_ns, mrc_config  # noqa: E402
from mrclab.hosts.rdma.events import (  # noqa: E402
    Event,
    EvState,
    PacketLost,
    Retransmitted,
    SendCompleted,
)
from mrclab.hosts.rdma.memory import MemoryRegion  # noqa: E402
from mrclab.hosts.transports import DEPLOYED, merged  # noqa: E402
from mrclab.linux.system import use_huge_pages  # noqa: E402
from mrclab.simulator.clock import PS_PER_NS  # noqa: E402
from mrclab.simulator.faults import NetworkFaults  # noqa: E402
from mrclab.simulator.network import Network  # noqa: E402
from mrclab.simulator.nic import Nic  # noqa: E402
from mrclab.topologies import Fabric  # noqa: E402

REACTION_NS = 200
TIMERS_IN_RTT = 8
MESSAGE_BYTES = 1 << 18
IN_FLIGHT = 16
"""The number of messages that are posted at a time: together 4 MB, more than any window."""


class Notes:
    """A program that posts writes and records completions, losses and retirements of EVs."""

    def __init__(self, nic: Nic) -> None:
        self.nic = nic
        self.endpoint = nic.endpoint
        assert isinstance(nic.endpoint, Endpoint)
        self.mrc = nic.endpoint
        self.qpn = self.mrc.create_qp()
        self.done_ns = 0
        self.spurious = self.retired = 0
        self.lost: list[PacketLost] = []
        self.retirements: list[EvRetired] = []
        self.repaired_ns: dict[int, int] = {}
        """The time of the last retransmission of a lost packet, by PSN."""
        self._data = memoryview(b"")
        self._region: MemoryRegion | None = None
        self._endless = False
        self._posted = 0
        nic.programs.append(self)

    def post(self, data: memoryview, region: MemoryRegion, *, endless: bool = False) -> None:
        """Write `data` once, or again and again without end."""
        self._data, self._region, self._endless = data, region, endless
        for _ in range(IN_FLIGHT if endless else 1):
            self._post()
        self.nic.wake_now()

    def _post(self) -> None:
        assert self._region is not None
        self._posted += 1
        region = self._region
        self.mrc.post_write(self.qpn, self._posted, self._data, region.address, region.rkey)

    def tick(self, now_ns: int) -> int | None:
        """Do nothing: messages are posted when earlier messages complete."""
        return None

    def take(self, event: Event) -> None:
        """Record an event."""
        if isinstance(event, SendCompleted):
            self.done_ns = event.t_ns
            if self._endless:
                self._post()
        elif isinstance(event, PacketLost):
            self.lost.append(event)
        elif isinstance(event, EvRetired):
            self.retired += 1
            self.retirements.append(event)
        elif isinstance(event, Retransmitted):
            self.repaired_ns[event.psn] = event.t_ns
        elif isinstance(event, SpuriousLoss):
            self.spurious += 1

    def bad_evs(self) -> int:
        """Return the number of EVs in the EV state ASSUMED_BAD."""
        return sum(ev.state is EvState.ASSUMED_BAD for ev in self.mrc.ev_counters(self.qpn))


class World:
    """A fabric with a NIC at every host."""

    def __init__(
        self, fabric: Fabric, options: dict[str, object], seed: int = 1, *, objects: bool = True
    ) -> None:
        self.fabric, self.objects = fabric, objects
        rtt_ns = idle_rtt_ns(fabric, fabric.hosts[0].name)
        self.network = Network(fabric, QueuePolicy.of_rtt(rtt_ns), seed)
        self.notes: dict[str, Notes] = {}
        for number, host in enumerate(fabric.hosts):
            given = merged({**datacenter_mrc(fabric, host.name), **DEPLOYED}, options)
            config = mrc_config(fabric, host.name, given)
            rng = random.Random(seed << 16 | number)
            endpoint = Endpoint(nic_addresses(fabric, host.name), config, rng, objects=objects)
            nic = self.network.attach(
                host.name, endpoint, REACTION_NS, rtt_ns // TIMERS_IN_RTT, objects=objects
            )
            self.notes[host.name] = Notes(nic)

    def connect(self, src: str, dst: str) -> None:
        """Connect the queue pair of one host to another host's queue pair, for data in one direction."""
        near, far = self.notes[src], self.notes[dst]
        near.mrc.connect(near.qpn, far.mrc.local_attributes(far.qpn), remote_paths(self.fabric, src, dst))

    def run_ns(self, duration_ns: int) -> None:
        """Run the simulation for ``duration_ns``."""
        self.network.clock.run(self.network.clock.now_ps + duration_ns * PS_PER_NS)

    def post_permutation(self, size: int) -> None:
        """Post a write of ``size`` bytes from each host i of n to host i + n / 2 (modulo n)."""
        names = list(self.notes)
        buffer = bytearray(size)
        peers = {name: names[(n + len(names) // 2) % len(names)] for n, name in enumerate(names)}
        for src, dst in peers.items():
            self.connect(src, dst)
        for src, dst in peers.items():
            memory = buffer if self.objects else bytearray(size)
            self.notes[src].post(memoryview(buffer), self.notes[dst].mrc.register_memory(memory))

    def run_until_done(self) -> float:
        """Run the simulation until all writes are done. Return the time of the last completion in us."""
        while any(not notes.done_ns for notes in self.notes.values()):
            self.run_ns(10_000)
        return max(notes.done_ns for notes in self.notes.values()) / 1000


def settle_memory() -> None:
    """Prepare the memory for a measured run: collect garbage, stop the garbage collector, use huge pages."""
    gc.collect()
    gc.freeze()
    gc.disable()
    use_huge_pages()


def permutation(
    hosts: int, megabytes: float, t1s: int, seed: int, options: dict[str, object], *, objects: bool
) -> None:
    """Measure a permutation, and print its cost."""
    fabric = fabric_of(4, 4 if hosts <= 128 else 32, t1s, hosts)
    world = World(fabric, options, seed, objects=objects)
    size = round(megabytes * 10**6)
    world.post_permutation(size)
    settle_memory()
    began = time.process_time()
    world.run_until_done()
    took_s = time.process_time() - began
    packets = hosts * -(-size // 4096)
    done = sorted(notes.done_ns / 1000 for notes in world.notes.values())
    ideal_us = (size + -(-size // 4096) * 138) * 8 / 4e5
    links = world.network.links.values()
    print(f"{hosts} hosts x {megabytes:g} MB: {took_s / packets * 1e6:.1f} us of CPU a data packet, ", end="")
    print(f"{world.network.clock.events / packets:.1f} events a packet, {took_s:.1f} s, ", end="")
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    print(f"  flows: ideal {ideal_us:.1f} us, median {done[len(done) // 2]:.1f}, slowest {done[-1]:.1f}")
    print(f"  marks {sum(p.marked for p in links)}, trims {sum(p.trimmed for p in links)}, ", end="")
    spurious, lost = (
        sum(n) for n in zip(*((n.spurious, len(n.lost)) for n in world.notes.values()), strict=True)
    )
    print(f"taken for lost {lost}, of them wrongly {spurious}, ", end="")
    print(f"EVs retired {sum(n.retired for n in world.notes.values())}")


def recovery_times(
    evs: int, cuts: int, seed: int, options: dict[str, object]
) -> tuple[dict[str, list[float]], int]:
    """Cut links one after another. Return the times after each cut in us, and the idle round trip in ns.

    `unfelt` has the times of cuts that lost no packet. `spurious` has the number of packets that were wrongly
    counted as lost."""
    planes = 8
    fabric = fabric_of(planes, 2, evs // planes, 2)
    world = World(fabric, {**options, "max_active_evs": evs, "spare_evs_per_plane": 0}, seed)
    faults, rng, clock = NetworkFaults(world.network), random.Random(seed), world.network.clock
    src, dst = (host.name for host in fabric.hosts)
    world.connect(src, dst)
    world.connect(dst, src)
    sender = world.notes[src]
    region = world.notes[dst].mrc.register_memory(bytearray(MESSAGE_BYTES))
    sender.post(memoryview(bytes(MESSAGE_BYTES)), region, endless=True)
    world.run_ns(100_000)
    links = [link.name for link in fabric.links if link.kind == "fabric" and "t0-0:" in link.name]
    found: dict[str, list[float]] = {"first loss": [], "detected": [], "rerouted": [], "recovered": []}
    found |= {"since loss": [], "unfelt": [], "spurious": []}
    for _ in range(cuts):
        world.run_ns(rng.randrange(20_000))
        link = rng.choice(links)
        at_ns = clock.now_ns
        sender.lost.clear()
        sender.retirements.clear()
        sender.repaired_ns.clear()
        faults.blackhole(link, "both", True)
        world.run_ns(100_000)
        faults.blackhole(link, "both", False)
        times = after_cut(sender, at_ns)
        if times is None:
            found["unfelt"].append(at_ns / 1000)
        else:
            for name, value in zip(found, (*times, times[-1] - times[0]), strict=False):
                found[name].append(value)
        for _ in range(100):
            world.run_ns(20_000)
            if not sender.bad_evs():
                break
        gc.collect()
    found["spurious"] = [float(sender.spurious)]
    return found, idle_rtt_ns(fabric, src)


def recovery(evs: int, cuts: int, seed: int, options: dict[str, object]) -> None:
    """Print the distributions of the times after a cut."""
    gc.disable()
    began = time.process_time()
    found, _ = recovery_times(evs, cuts, seed, options)
    spurious, unfelt = found.pop("spurious"), found.pop("unfelt")
    print(f"{evs} EVs, {cuts} cuts, {len(unfelt)} not felt, ", end="")
    print(f"{time.process_time() - began:.1f} s of CPU, wrongly taken for lost {spurious[0]:.0f}")
    for name, values in found.items():
        values.sort()
        p99 = values[min(len(values) - 1, round(0.99 * len(values)))]
        print(
            f"  {name:12} median {statistics.median(values):6.1f}  p99 {p99:6.1f}  worst {values[-1]:6.1f} us"
        )


def after_cut(sender: Notes, at_ns: int) -> tuple[float, float, float, float] | None:
    """Return the times from a cut to each of four moments in us, or None if no packet was lost.

    The moments: the first lost packet is sent, the first EV is retired, the last lost packet is sent, and the
    last copy of a lost packet arrives (half an RTT after it is sent). A lost packet is one that the sender
    counted as lost, and sent less than an RTT before the cut or after it.
    """
    rtt_ns = sender.mrc.config.initial_rtt_ns
    lost = [event for event in sender.lost if event.sent_ns >= at_ns - rtt_ns]
    if not lost:
        return None
    retired = min((e.t_ns for e in sender.retirements), default=0)
    times = (
        max(0, min(e.sent_ns for e in lost) - at_ns),
        retired - at_ns,
        max(0, max(e.sent_ns for e in lost) - at_ns),
        max(sender.repaired_ns[e.psn] for e in lost) + rtt_ns // 2 - at_ns,
    )
    first, detected, rerouted, recovered = (t / 1000 for t in times)
    return first, detected, rerouted, recovered


def memory(evs: int, queue_pairs: int, options: dict[str, object]) -> None:
    """Print the memory of an idle queue pair."""
    fabric = fabric_of(4, 2, 64, 2)
    src, dst = (host.name for host in fabric.hosts)
    given = {**options, "max_active_evs": evs, "spare_evs_per_plane": 0}
    given = merged({**datacenter_mrc(fabric, src), **DEPLOYED}, given)
    ends = [
        Endpoint(nic_addresses(fabric, host), mrc_config(fabric, host, given), random.Random(1))
        for host in (src, dst)
    ]
    attributes, paths = ends[1].local_attributes(ends[1].create_qp()), remote_paths(fabric, src, dst)
    tracemalloc.start()
    for number in range(queue_pairs + 1):
        if number == 1:  # The first queue pair makes the shared objects.
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
        ends[0].connect(ends[0].create_qp(), attributes, paths)
    gc.collect()
    each = (tracemalloc.get_traced_memory()[0] - before) / queue_pairs
    print(f"{evs} EVs: {each / 1000:.1f} KB for each of {queue_pairs} idle queue pairs")


def main() -> None:
    parser = argparse.ArgumentParser(description="The simulator's speed, and recovery at 800 Gbit/s.")
    parser.add_argument("what", choices=("permutation", "recovery", "memory"))
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--megabytes", type=float, default=2.0)
    parser.add_argument("--t1", type=int, default=16, help="T1s in each of 4 planes (permutation)")
    parser.add_argument("--bytes", action="store_true", help="frames rather than objects (permutation)")
    parser.add_argument("--evs", type=int, default=64)
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--queue-pairs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=NUMBER", help="of MRC")
    options = parser.parse_args()
    given: dict[str, object] = {
        key: float(value) if "." in value else int(value)
        for key, _, value in (entry.partition("=") for entry in options.set)
    }
    print(f"{machine()}; {compiled.describe()}")
    if options.what == "permutation":
        asked = (options.hosts, options.megabytes, options.t1, options.seed)
        permutation(*asked, given, objects=not options.bytes)
    elif options.what == "memory":
        memory(options.evs, options.queue_pairs, given)
    else:
        recovery(options.evs, options.cuts, options.seed, given)


if __name__ == "__main__":
    main()
