"""How evenly MRC's rotation fills links under full load, for each option of the rotation.

    python benchmarks/full_load.py flows [--uplinks 16] [--evs 0] [--seeds 6]
    python benchmarks/full_load.py queue-pairs [--queue-pairs 1,8] [--seeds 6]

`flows`: as many steady flows as one plane has uplinks, each at its NIC's full rate from one rack to the
other, NSCC, 100 Gbit/s. Theory: every uplink can be full all the time, so goodput is 1 of the links' payload
rate. `--evs N` replaces the path of each T1 by N random EVs that switches hash. `queue-pairs`: one NIC of 4 x
100 Gbit/s sends to another over 2 uplinks a plane, by 1 or more queue pairs. Values are means over the seeds
with their standard error and least value, over the last half of the time. `--option NAME=VALUE` may be
repeated: each is a variant, and commas join the options of one variant.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
from typing import Any

from benchmarks.kit.results import machine
from mrclab.controller.queues import QueuePolicy
from mrclab.hosts import compiled
from mrclab.hosts.mrc import Endpoint
from mrclab.hosts.nic.routes import nic_addresses, paths_for
from mrclab.hosts.options import datacenter_mrc, idle_rtt_ns, mrc_config
from mrclab.hosts.rdma.events import Event, SendCompleted
from mrclab.hosts.transports import DEPLOYED, merged
from mrclab.p4src.contract import FRAME_OVERHEAD_BYTES, TIMESTAMP_BYTES
from mrclab.simulator.clock import PS_PER_NS
from mrclab.simulator.network import Network
from mrclab.simulator.nic import Nic
from mrclab.topologies import Fabric, build_fabric

MTU = 4096
RATE_GIGABITS = 100
OUTER_BYTES = 40
MESSAGE_BYTES = 1 << 18
IN_FLIGHT = 16
REACTION_NS = 200
TIMERS_IN_RTT = 8


def fabric_of(planes: int, uplinks: int, hosts: int) -> Fabric:
    """Return a fabric of two racks with ``uplinks`` T1s a plane and ``hosts`` NICs in all."""
    rate = f"{RATE_GIGABITS} Gbit/s"
    links = {"host": {"rate": rate, "delay": "500 ns"}, "fabric": {"rate": rate, "delay": "725 ns"}}
    spec = {"name": "load", "planes": planes, "t0": 2, "t1": uplinks, "hosts": hosts, "links": links}
    return build_fabric(json.dumps(spec), "load")


class Sender:
    """Queue pairs that always have messages to send."""

    def __init__(self, endpoint: Endpoint, nic: Nic) -> None:
        self.endpoint, self.nic = endpoint, nic
        self.targets: dict[int, tuple[int, int]] = {}
        """Address and key of the memory that a queue pair writes to."""
        self._data = memoryview(bytes(MESSAGE_BYTES))
        nic.programs.append(self)

    def begin(self, qpn: int, address: int, rkey: int) -> None:
        """Keep a queue pair busy from now on."""
        self.targets[qpn] = address, rkey
        for _ in range(IN_FLIGHT):
            self.endpoint.post_write(qpn, 0, self._data, address, rkey)
        self.nic.wake_now()

    def tick(self, now_ns: int) -> int | None:
        """Do nothing: all is done when something completes."""
        return None

    def take(self, event: Event) -> None:
        """Post another message for each that is done."""
        if isinstance(event, SendCompleted) and event.qpn in self.targets:
            self.endpoint.post_write(event.qpn, 0, self._data, *self.targets[event.qpn])


class Load:
    """A fabric with a NIC at every host, and flows that never end."""

    def __init__(self, fabric: Fabric, options: dict[str, Any], seed: int) -> None:
        self.fabric = fabric
        rtt_ns = idle_rtt_ns(fabric, fabric.hosts[0].name)
        objects = options.get("ev_mode", "srv6") == "srv6"
        self.network = Network(fabric, QueuePolicy.of_rtt(rtt_ns), seed)
        if not objects:
            self.network.route(choice="hash" if options["ev_mode"] == "ecmp" else "ev")
        self.senders: dict[str, Sender] = {}
        self.received: list[tuple[Endpoint, int]] = []
        self._buffer = bytearray(MESSAGE_BYTES)
        for number, host in enumerate(fabric.hosts):
            given = merged({**datacenter_mrc(fabric, host.name), **DEPLOYED}, options)
            config = mrc_config(fabric, host.name, given)
            rng = random.Random(seed << 16 | number)
            endpoint = Endpoint(nic_addresses(fabric, host.name), config, rng, objects=objects)
            grain_ns = rtt_ns // TIMERS_IN_RTT
            nic = self.network.attach(host.name, endpoint, REACTION_NS, grain_ns, objects=objects)
            self.senders[host.name] = Sender(endpoint, nic)

    def flow(self, src: str, dst: str) -> None:
        """Begin a flow on a separate queue pair."""
        near, far = self.senders[src].endpoint, self.senders[dst].endpoint
        ours, theirs = near.create_qp(), far.create_qp()
        near.connect(ours, far.local_attributes(theirs), paths_for(near, self.fabric, src, dst))
        far.connect(theirs, near.local_attributes(ours), paths_for(far, self.fabric, dst, src))
        region = far.register_memory(self._buffer)
        self.senders[src].begin(ours, region.address, region.rkey)
        self.received.append((far, theirs))

    def placed(self) -> list[int]:
        """Return the bytes that each flow has delivered."""
        return [endpoint.bytes_placed(qpn) for endpoint, qpn in self.received]

    def run_ns(self, duration_ns: int) -> None:
        """Let time pass."""
        self.network.clock.run(self.network.clock.now_ps + duration_ns * PS_PER_NS)

    def measure(self, duration_ns: int) -> tuple[list[float], float, int]:
        """Return each flow's Gbit/s in the last half, the share of data with marks, and trimmed packets."""
        self.run_ns(duration_ns // 2)
        links = self.network.links.values()
        before, marked = self.placed(), sum(p.marked for p in links)
        trimmed = sum(p.trimmed for p in links)
        self.run_ns(duration_ns // 2)
        got = [(now - then) for now, then in zip(self.placed(), before, strict=True)]
        marks = (sum(p.marked for p in links) - marked) / max(1, sum(got) / MTU)
        rates = [8 * n / (duration_ns // 2) for n in got]
        return rates, marks, sum(p.trimmed for p in links) - trimmed


def flows(uplinks: int, evs: int, duration_ns: int, options: dict[str, Any], seed: int) -> list[float]:
    """Return goodput of all and of the slowest flow, of 1, the share marked and the trims."""
    fabric = fabric_of(1, uplinks, 2 * uplinks)
    names = [host.name for host in fabric.hosts]
    if evs:
        options = {**options, "ev_mode": "ecmp", "max_active_evs": evs}
    load = Load(fabric, options, seed)
    for src, dst in zip(names[:uplinks], names[uplinks:], strict=True):
        load.flow(src, dst)
    rates, marks, trims = load.measure(duration_ns)
    overhead_bytes = FRAME_OVERHEAD_BYTES + TIMESTAMP_BYTES - (OUTER_BYTES if evs else 0)
    ideal = RATE_GIGABITS * MTU / (MTU + overhead_bytes)
    return [sum(rates) / uplinks / ideal, min(rates) / ideal, marks, trims]


def queue_pairs(count: int, duration_ns: int, options: dict[str, Any], seed: int) -> list[float]:
    """Return the Gbit/s of one NIC with so many queue pairs to a peer, the share marked and the trims."""
    fabric = fabric_of(4, 2, 4)
    names = [host.name for host in fabric.hosts]
    load = Load(fabric, options, seed)
    for pair in ((names[0], names[2]), (names[1], names[3])):
        for _ in range(count):
            load.flow(*pair)
    rates, marks, trims = load.measure(duration_ns)
    return [sum(rates) / 2, min(rates), marks, trims]


def report(name: str, rows: list[list[float]], what: tuple[str, ...]) -> None:
    """Print the mean of each value and its standard error."""
    cells = []
    for title, values in zip(what, zip(*rows, strict=True), strict=True):
        error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
        cells.append(f"{title} {statistics.mean(values):.4g} +- {error:.2g} [{min(values):.4g}]")
    print(f"{name or 'usual':44} n {len(rows)}: " + ", ".join(cells), flush=True)


def variant(words: str) -> dict[str, Any]:
    """Return the options of ``NAME=VALUE,NAME=VALUE``; values are JSON or else strings."""
    options: dict[str, Any] = {}
    for word in filter(None, words.split(",")):
        name, _, value = word.partition("=")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def main() -> None:
    """Measure the variants in turns, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("flows", "queue-pairs"))
    parser.add_argument("--uplinks", type=int, default=16)
    parser.add_argument("--evs", type=int, default=0, help="random EVs, which switches hash")
    parser.add_argument("--queue-pairs", default="1,8")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--microseconds", type=int, default=1000)
    parser.add_argument("--option", action="append", default=None, help="a variant: NAME=VALUE,NAME=VALUE")
    args = parser.parse_args()
    print(f"{machine()}; {compiled.describe()}", flush=True)
    gc.disable()
    variants = args.option or ["", "ev_health=false"]
    duration_ns = args.microseconds * 1000
    counts = [int(word) for word in args.queue_pairs.split(",")]
    found: dict[str, list[list[float]]] = {}
    for seed in range(1, args.seeds + 1):
        for words in variants:
            options = variant(words)
            if args.what == "flows":
                row = flows(args.uplinks, args.evs, duration_ns, options, seed)
                found.setdefault(words, []).append(row)
            else:
                for count in counts:
                    row = queue_pairs(count, duration_ns, options, seed)
                    found.setdefault(f"{count} QPs {words}", []).append(row)
            gc.collect()
    what = ("all", "slowest", "marked", "trims")
    for name, rows in found.items():
        report(name, rows, what)


if __name__ == "__main__":
    main()
