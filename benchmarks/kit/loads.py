"""Endless flows of MRC over a fabric in virtual time, for benchmarks and for the closed forms."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from mrclab.controller.queues import QueuePolicy
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


def fabric_of(planes: int, t0s: int, t1s: int, hosts: int, gigabits: int = RATE_GIGABITS) -> Fabric:
    """Return a fabric with ``t1s`` T1s a plane, ``hosts`` NICs in all, and the delays of `paper-c`."""
    rate = f"{gigabits} Gbit/s"
    links = {"host": {"rate": rate, "delay": "500 ns"}, "fabric": {"rate": rate, "delay": "725 ns"}}
    spec = {"name": "bench", "planes": planes, "t0": t0s, "t1": t1s, "hosts": hosts, "links": links}
    return build_fabric(json.dumps(spec), "bench")


def frame_bytes(options: Mapping[str, Any] | None = None) -> int:
    """Return a full packet's length on the wire. It has an outer header if its EVs are segment lists."""
    outer = (options or {}).get("ev_mode", "srv6") == "srv6"
    return MTU + FRAME_OVERHEAD_BYTES + TIMESTAMP_BYTES - (0 if outer else OUTER_BYTES)


class Sender:
    """Queue pairs that always have messages to send."""

    def __init__(self, endpoint: Endpoint, nic: Nic) -> None:
        self.endpoint, self.nic = endpoint, nic
        self.targets: dict[int, tuple[int, int]] = {}
        """The address and the key of the memory to which each queue pair writes."""
        self._data = memoryview(bytes(MESSAGE_BYTES))
        nic.programs.append(self)

    def begin(self, qpn: int, address: int, rkey: int) -> None:
        """Post the first messages of a queue pair, which sends without end from now on."""
        self.targets[qpn] = address, rkey
        for _ in range(IN_FLIGHT):
            self.endpoint.post_write(qpn, 0, self._data, address, rkey)
        self.nic.wake_now()

    def tick(self, now_ns: int) -> int | None:
        """Do nothing: messages are posted when earlier messages complete."""
        return None

    def take(self, event: Event) -> None:
        """Post a new message for each completed message."""
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
        ours, address, rkey = self._connect(src, dst)
        self.senders[src].begin(ours, address, rkey)

    def paced(
        self, src: str, dst: str, phase_ps: int, slot_ps: int, slots: int, part: float, rng: random.Random
    ) -> None:
        """Post a packet in each slot with probability ``part``."""
        sender = self.senders[src]
        ours, address, rkey = self._connect(src, dst)

        def post() -> None:
            sender.endpoint.post_write(ours, 0, bytes(MTU), address, rkey)
            sender.nic.wake_now()

        for slot in range(slots):
            if rng.random() < part:
                self.network.clock.call_at(slot * slot_ps + phase_ps, post)

    def _connect(self, src: str, dst: str) -> tuple[int, int, int]:
        """Connect a new queue pair. Return its number, and the address and key of the memory at the peer."""
        near, far = self.senders[src].endpoint, self.senders[dst].endpoint
        ours, theirs = near.create_qp(), far.create_qp()
        near.connect(ours, far.local_attributes(theirs), paths_for(near, self.fabric, src, dst))
        far.connect(theirs, near.local_attributes(ours), paths_for(far, self.fabric, dst, src))
        region = far.register_memory(self._buffer)
        self.received.append((far, theirs))
        return ours, region.address, region.rkey

    def placed(self) -> list[int]:
        """Return the bytes that each flow has delivered."""
        return [endpoint.bytes_placed(qpn) for endpoint, qpn in self.received]

    def run_ns(self, duration_ns: int) -> None:
        """Run the simulation for ``duration_ns``."""
        self.network.clock.run(self.network.clock.now_ps + duration_ns * PS_PER_NS)

    def measure(self, duration_ns: int) -> tuple[list[float], float, int]:
        """Return each flow's Gbit/s, the share of marked packets, the trims, for the time's second half."""
        self.run_ns(duration_ns // 2)
        links = self.network.links.values()
        before, marked = self.placed(), sum(p.marked for p in links)
        trimmed = sum(p.trimmed for p in links)
        self.run_ns(duration_ns // 2)
        got = [(now - then) for now, then in zip(self.placed(), before, strict=True)]
        marks = (sum(p.marked for p in links) - marked) / max(1, sum(got) / MTU)
        rates = [8 * n / (duration_ns // 2) for n in got]
        return rates, marks, sum(p.trimmed for p in links) - trimmed
