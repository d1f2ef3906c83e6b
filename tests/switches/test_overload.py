"""More than a link can carry, on real interfaces: who is trimmed, who is marked, and who does not wait."""

from __future__ import annotations

import itertools
import math
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from finsy.proto import p4i

from controller.queues import HIGH_DSCP, TRIMMABLE_DSCP, queue_setting
from switches.ebpf.target import EbpfTarget
from switches.target import SwitchSpec
from testbed.links import DATA_CLASS, HIGH_CLASS, LINK_CLASS
from testbed.rtnetlink import htb, htb_class, opened, send
from tests.switches.switch_kit import (
    DST,
    JSON,
    MY_SID,
    NEXT_HOP,
    Client,
    Names,
    Namespace,
    forwarded,
    insert,
    mrc_frame,
    receive,
    sid,
)
from topologies import LinkProfile

pytestmark = pytest.mark.root
QUEUE, MARKS = "MrcIngress.port_queue", "MrcIngress.ecn_mark"
RATE, MTU = 20_000_000, 4300
WHOLE = 138 + 4096
FRAME_S = WHOLE * 8 / RATE
TRIMMABLE, CONTROL = 4, 46
CATCH_UP_S = 0.004
_SO_SNDBUFFORCE = 32


class Merge:
    """A switch with two ports in and one out, h3, that carries `RATE`; `last_hop`: a NIC is there."""

    def __init__(self, ns: Namespace, log_dir: Path, info: p4i.P4Info, json: bytes, last_hop: bool) -> None:
        self.ns, self.names, self.stack = ns, Names(info), ExitStack()
        for i in (1, 2, 3):
            ns.pair(f"s{i}", f"h{i}")
        ns.run(lambda: self._shape("s3"))
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
        self.setting = s = queue_setting(LinkProfile(RATE, 0, MTU), last_hop=last_hop)
        hop = "MrcIngress.micro_segment"
        entry = self.names.entry
        rows = [
            entry(MY_SID, {DST: (sid(1), 48)}, f"{hop}.un"),
            entry(NEXT_HOP, {DST: (sid(3), 48)}, f"{hop}.forward", 3, 1, 2),
            entry(
                f"{QUEUE}.port_queue",
                {"port": 3},
                f"{QUEUE}.send_at",
                *(s.byte_time, s.limit, s.trim_from, s.trim_limit, s.trim_dscp),
            ),
        ]
        classes = [(d, "trimmable") for d in TRIMMABLE_DSCP] + [(d, "high") for d in HIGH_DSCP]
        rows += [entry(f"{QUEUE}.traffic_class", {"dscp": d}, f"{QUEUE}.{c}") for d, c in classes]
        if s.mark is not None:
            rows.append(entry(f"{MARKS}.marking", {"port": 3}, f"{MARKS}.red", *s.mark))
        self.client.write(*map(insert, rows))
        self.h = {}
        for i in (1, 2, 3):
            self.h[i] = ns.packet_socket(f"h{i}")
            # Frames that wait in a queue count against their sender, which must not wait with them.
            self.h[i].setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 16 << 20)
            self.stack.callback(self.h[i].close)

    @staticmethod
    def _shape(ifname: str) -> None:
        """As testbed/links.py does it, with less of a burst so that frames queue at once."""
        index, tiny, burst = socket.if_nametoindex(ifname), RATE // 1000, 2 * MTU

        def one(number: int, parent: int, rate: int, order: int) -> object:
            how = {"rate_bps": rate, "ceil_bps": RATE, "burst_bytes": burst, "order": order}
            return htb_class(index, number=number, parent=parent, **how)

        with opened() as route:
            requests = (
                htb(index, default_class=DATA_CLASS),
                one(LINK_CLASS, 0, RATE, 0),
                one(HIGH_CLASS, LINK_CLASS, tiny, 0),
                one(DATA_CLASS, LINK_CLASS, tiny, 1),
            )
            send(route, requests, "a port of the test's own")

    def count(self, name: str, index: int) -> int:
        (found,) = self.client.read(self.names.counter(f"MrcIngress.{name}", index))
        return found.counter_entry.data.packet_count


@pytest.fixture(params=[False, True], ids=["fabric", "last hop"])
def merge(
    request: pytest.FixtureRequest, namespace: Namespace, tmp_path: Path, mrc_info: p4i.P4Info
) -> Iterator[Merge]:
    made = Merge(namespace, tmp_path, mrc_info, JSON.read_bytes(), request.param)
    try:
        yield made
    finally:
        made.stack.close()


def codepoint(frame: bytes) -> int:
    return frame[14] << 2 & 0x3C | frame[15] >> 6


@pytest.mark.parametrize("overload", [2, 10])
def test_overload_trims_and_marks_and_drops_nothing(merge: Merge, overload: int) -> None:
    frame, sent = mrc_frame(sid(1, 3), 4096, dscp=TRIMMABLE, ecn=2), 150 * overload
    start = due = time.monotonic()
    missed = 0.0
    for _, port in zip(range(sent), itertools.cycle((1, 2)), strict=False):
        while (now := time.monotonic()) < due:
            pass
        # A sender that was kept from its work catches up a little: all at once would be another overload.
        late = max(now - CATCH_UP_S - due, 0)
        missed, due = missed + late, due + late + FRAME_S / overload
        merge.h[port].send(frame)
    lasted = time.monotonic() - start
    got = receive(merge.h[3], sent, 5)
    trimmed = [f for f in got if len(f) == 134]
    whole = [f for f in got if len(f) == WHOLE]
    drops = [merge.count("drops", reason) for reason in (7, 8)]
    # Not one is missing: what came in left, whole or cut.
    assert (len(got), drops) == (sent, [0, 0])
    assert len(trimmed) + len(whole) == sent
    assert merge.count("trim.trimmed", 3) == len(trimmed)
    assert {codepoint(f) for f in trimmed} == {16 if merge.setting.mark is None else 12}
    # The link was never idle: whole frames took what the trimmed ones left, and as much again as may queue.
    carried = (len(whole) * WHOLE + len(trimmed) * 134) * 8
    queued = (merge.setting.trim_from / 1024e6 + 2 * FRAME_S) * RATE
    assert 0.9 * (lasted - missed) * RATE < carried < lasted * RATE + queued
    marked = [f[15] >> 4 & 3 == 3 for f in whole]
    if merge.setting.mark is None:
        assert not any(marked)
    else:
        assert not any(marked[:3])  # they found less than a fifth of 16 frames before them
        full = marked[math.ceil(16 * overload / (overload - 1)) + 2 :]
        # Trimming holds the queue above the upper threshold, unless the senders paused.
        assert sum(full) > (0.9 - 2 * missed / lasted) * len(full)
        assert merge.count("ecn_mark.marked", 3) == sum(f[15] >> 4 & 3 == 3 for f in got)


def test_control_overtakes_all_data_that_waits(merge: Merge) -> None:
    data = mrc_frame(sid(1, 3), 4096, dscp=0)
    control = mrc_frame(sid(1, 3), 64, dscp=CONTROL)
    for _ in range(30):  # they take 50 ms
        merge.h[1].send(data)
    merge.h[2].send(control)
    got = receive(merge.h[3], 31, 5)
    place = [codepoint(f) for f in got].index(CONTROL)
    assert place < 15
    assert len(got) == 31 - merge.count("drops", 7)
