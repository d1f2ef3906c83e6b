"""A switch that merges two links into one, on real interfaces, for tests of overload."""

from __future__ import annotations

import math
import random
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from finsy.proto import p4i

from mrclab.controller.queues import QueueSetting, queue_setting
from mrclab.linux import rtnetlink
from mrclab.p4src.contract import (
    BYTE_TIME_ONE,
    CLASS_ACTIONS,
    SWITCH_MAP,
    TICKS_PER_US,
    TRIMMABLE_DSCP,
    TRIMMED_BYTES,
)
from mrclab.switches.ebpf.target import EbpfTarget
from mrclab.switches.spec import SwitchSpec
from mrclab.testbed import links
from mrclab.topologies import LinkProfile
from tests.support.switch_kit import (
    DST,
    MY_SID,
    NEXT_HOP,
    Client,
    Names,
    Namespace,
    forwarded,
    insert,
    mrc_frame,
    sid,
)

QUEUE, MARKS = "MrcIngress.port_queue", "MrcIngress.ecn_mark"
_SO_SNDBUFFORCE = 32


class Merge:
    """An ebpf switch with two input ports and one output port, each linked to a host: s1-h1, s2-h2, s3-h3.

    Port 3 is programmed and shaped for the link `profile`, by the testbed's own functions. With `last_hop`, a
    NIC is behind port 3. Without `shaped`, the kernel does not limit the rate. `classes` maps a DSCP to its
    class.
    """

    def __init__(
        self,
        ns: Namespace,
        log_dir: Path,
        info: p4i.P4Info,
        json: bytes,
        profile: LinkProfile,
        *,
        last_hop: bool = False,
        shaped: bool = True,
        programmed: bool = True,
        classes: Mapping[int, str] = SWITCH_MAP,
    ) -> None:
        self.ns, self.names, self.stack = ns, Names(info), ExitStack()
        self.setting = s = queue_setting(profile, last_hop=last_hop)
        for i in (1, 2, 3):
            ns.pair(f"s{i}", f"h{i}")
        if shaped:
            ns.run(lambda: _shape("s3", profile))
        target = EbpfTarget()
        (running,) = target.start(
            [SwitchSpec("s", 5, {i: f"s{i}" for i in (1, 2, 3)})], netns=ns.name, log_dir=log_dir
        )
        self.stack.callback(target.stop)
        address = self.stack.enter_context(forwarded(ns, running.grpc_address))
        self.client = Client(address, 5)
        self.stack.callback(self.client.close)
        self.client.become_primary()
        self.client.set_pipeline(json, info)
        hop, entry = "MrcIngress.micro_segment", self.names.entry
        rows = [
            entry(MY_SID, {DST: (sid(1), 48)}, f"{hop}.un"),
            entry(NEXT_HOP, {DST: (sid(3), 48)}, f"{hop}.forward", 3, 1, 2),
        ]
        if programmed:
            queue = (s.byte_time, s.limit, s.trim_from, s.trim_limit, s.trim_dscp)
            rows.append(entry(f"{QUEUE}.port_queue", {"port": 3}, f"{QUEUE}.send_at", *queue))
            if s.mark is not None:
                rows.append(entry(f"{MARKS}.marking", {"port": 3}, f"{MARKS}.red", *s.mark))
        table = f"{QUEUE}.traffic_class"
        rows += [entry(table, {"dscp": d}, f"{QUEUE}.{CLASS_ACTIONS[c]}") for d, c in classes.items()]
        self.client.write(*map(insert, rows))
        self.h = {}
        for i in (1, 2, 3):
            self.h[i] = ns.packet_socket(f"h{i}")
            # Frames that wait in the switch occupy the sender's buffer. A large buffer has room for more.
            self.h[i].setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 16 << 20)
            self.stack.callback(self.h[i].close)

    def __enter__(self) -> Merge:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def count(self, name: str, index: int) -> int:
        """Return the number of packets of a counter of the switch program."""
        (found,) = self.client.read(self.names.counter(f"MrcIngress.{name}", index))
        packets: int = found.counter_entry.data.packet_count
        return packets


def _shape(ifname: str, profile: LinkProfile) -> None:
    with rtnetlink.opened() as route:
        links.shape_ports(route, [(socket.if_nametoindex(ifname), profile)])


@dataclass
class PortModel:
    """The model of p4src/queue.p4 for trimmable frames that are sent at known times. Times are in ns."""

    setting: QueueSetting
    idle_at: float = 0.0

    def send(self, now: float, length: int) -> tuple[float, bool]:
        """Return how long a frame has to wait (ns), and whether it is trimmed."""
        self.idle_at = max(self.idle_at, now)
        wait = self.idle_at - now
        trimmed = wait > ticks_ns(self.setting.trim_from)
        byte_ns = ticks_ns(self.setting.byte_time) / BYTE_TIME_ONE
        self.idle_at += (TRIMMED_BYTES if trimmed else length) * byte_ns
        return wait, trimmed

    def mark_chance(self, wait: float) -> float:
        """Return the probability that a frame which waits for ``wait`` ns is marked."""
        if self.setting.mark is None:
            return 0.0
        start, span = map(ticks_ns, self.setting.mark)
        return min(max((wait - start) / span, 0.0), 1.0)


def ticks_ns(ticks: int) -> float:
    """Convert ticks of the switch program's clock to nanoseconds."""
    return ticks * 1e3 / TICKS_PER_US


def marks_between(merge: Merge, frames: int, draw: random.Random) -> dict[str, float]:
    """Send frames that meet a queue of random depth between the thresholds for marking.

    Return how many frames were ``sent`` and ``marked``, how many marks are ``expected``, and the
    ``deviation`` (one standard deviation of the expected number).
    """
    assert merge.setting.mark is not None
    start, span = map(ticks_ns, merge.setting.mark)
    frame = mrc_frame(sid(1, 3), 4096, dscp=TRIMMABLE_DSCP, ecn=2)
    before = merge.count("ecn_mark.marked", 3)
    model, expected, variance = PortModel(merge.setting), 0.0, 0.0
    for number in range(frames):
        target = start + span * draw.random()
        while (now := time.monotonic_ns()) < model.idle_at - target:
            pass
        merge.h[1 + number % 2].send(frame)
        wait, _ = model.send((now + time.monotonic_ns()) / 2, len(frame))
        chance = model.mark_chance(wait)
        expected += chance
        variance += chance * (1 - chance)
    marked = merge.count("ecn_mark.marked", 3) - before
    return {"sent": frames, "expected": expected, "deviation": math.sqrt(variance), "marked": marked}
