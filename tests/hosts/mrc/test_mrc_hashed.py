"""MRC without SRv6: frames without an outer header, whose source port and flow label carry the EV."""

import random
from dataclasses import replace

import pytest

from mrclab.hosts.clustermapper.denylist import apply_denylist
from mrclab.hosts.mrc import Endpoint, MrcConfig
from mrclab.hosts.mrc.events import EvRetired
from mrclab.hosts.mrc.packets import with_room_for_outer
from mrclab.hosts.nic.routes import nic_addresses, paths_for
from mrclab.hosts.rdma.events import ReceiveCompleted, SendCompleted, Status
from mrclab.hosts.rdma.frames import UDP_PORT
from mrclab.topologies import load_fabric
from mrclab.topologies.ev_paths import hashed_path, structured_paths

TINY = load_fabric("tiny")
HOSTS = ("h0", "h2")
CONFIG = MrcConfig(
    ev_mode="ecmp",
    max_active_evs=32,
    spare_evs_per_plane=2,
    reverse_evs="set",
    timestamps=True,
    mtu_bytes=512,
    cwnd_bytes=32 * 512,
    sack_coalesce=1,
)


class Pair:
    """Two endpoints on a fabric whose switches hash EVs or read them. ``broken`` is a dead link."""

    def __init__(self, broken: str = "", cut: int = 0, mode: str = "ecmp") -> None:
        config = replace(CONFIG, ev_mode=mode)
        self.mode = mode
        self.ends = [
            Endpoint(nic_addresses(TINY, name), config, random.Random(n)) for n, name in enumerate(HOSTS)
        ]
        self.qpns = [end.create_qp() for end in self.ends]
        for me in (0, 1):
            paths = paths_for(self.ends[me], TINY, HOSTS[me], HOSTS[1 - me])
            self.ends[me].connect(self.qpns[me], self.ends[1 - me].local_attributes(self.qpns[1 - me]), paths)
        self.broken, self.cut, self.now_ns = broken, cut, 1_000_000
        self.frames: list[bytes] = []
        self.events: list[list[object]] = [[], []]

    def path_of(self, source: int, frame: bytes) -> tuple[str, ...]:
        label, port = int.from_bytes(frame[16:18], "big"), int.from_bytes(frame[54:56], "big")
        return self.links_of(source, label << 16 | port)

    def links_of(self, source: int, ev: int) -> tuple[str, ...]:
        ends = HOSTS[source], HOSTS[1 - source]
        if self.mode == "ecmp":
            return hashed_path(TINY, *ends, ev, UDP_PORT).links
        [links] = [path.links for path in structured_paths(TINY, *ends) if path.ev == ev]
        return links

    def run(self, ns: int) -> None:
        """Deliver every frame 50 us after it was sent, for a time of ``ns``."""
        end_ns = self.now_ns + ns
        under_way: list[tuple[int, int, int, bytes]] = []
        while self.now_ns < end_ns:
            for me, end in enumerate(self.ends):
                end.handle_timer(self.now_ns)
                for port, frame in end.frames_to_send(self.now_ns):
                    self.frames.append(frame)
                    if self.broken not in self.path_of(me, frame):
                        under_way.append((self.now_ns + 50_000, 1 - me, port, frame))
                self.events[me] += end.events()
            for due, to, port, frame in [item for item in under_way if item[0] <= self.now_ns]:
                self.ends[to].receive(port, self._cut(frame), due)
            under_way = [item for item in under_way if item[0] > self.now_ns]
            self.now_ns += 10_000

    def _cut(self, frame: bytes) -> bytes:
        """Trim the first full packets, as a switch does."""
        if self.cut and len(frame) > 300:
            self.cut -= 1
            first = int.from_bytes(frame[14:16], "big") & 0xF03F | 12 << 6
            kept = frame[: 14 + 40 + 8 + 12 + 4 + 4 + 16]
            return kept[:14] + first.to_bytes(2, "big") + kept[16:]
        return frame

    def write(self, size: int) -> bytearray:
        memory = bytearray(size)
        region = self.ends[1].register_memory(memory)
        data = random.Random(9).randbytes(size)
        self.ends[0].post_write(self.qpns[0], 1, data, region.address, region.rkey, imm=7)
        self.run(40_000_000)
        whole = memory == data  # pytest would take minutes to show the difference of so many bytes
        assert whole
        return memory

    def of(self, me: int, kind: type) -> list[object]:
        return [event for event in self.events[me] if isinstance(event, kind)]


def test_a_write_arrives_in_plain_frames_whose_evs_spread_over_all_paths():
    pair = Pair()
    pair.write(100_000)
    [sent], [received] = pair.of(0, SendCompleted), pair.of(1, ReceiveCompleted)
    assert (sent.status, received.imm) == (Status.SUCCESS, 7)
    assert {frame[20] for frame in pair.frames} == {17}, "UDP follows the only IPv6 header"
    data = [frame for frame in pair.frames if len(frame) > 300]
    assert len({pair.path_of(0, frame) for frame in data}) == 4
    assert not pair.of(0, EvRetired)


@pytest.mark.parametrize("broken", ["p0-t0-0:p0-t1-1", "p1-t0-1:p1-t1-0"])
def test_all_evs_that_the_hash_puts_onto_a_dead_link_are_retired_and_no_other(broken):
    pair = Pair(broken)
    pair.write(400_000)
    retired = {event.ev for event in pair.of(0, EvRetired)}
    used = {ev.ev for ev in pair.ends[0].ev_counters(pair.qpns[0]) if ev.sent}
    onto = {ev for ev in used if broken in hashed_path(TINY, *HOSTS, ev, UDP_PORT).links}
    assert len(onto) > 1, "several EVs share a path"
    assert retired == onto


@pytest.mark.parametrize("broken", ["p0-t0-0:p0-t1-1", "p1-t0-1:p1-t1-0"])
def test_the_one_structured_ev_over_a_dead_link_is_retired(broken):
    pair = Pair(broken, mode="structured")
    pair.write(400_000)
    used = {ev.ev for ev in pair.ends[0].ev_counters(pair.qpns[0]) if ev.sent}
    assert used == {path.ev for path in structured_paths(TINY, *HOSTS)}
    [gone] = {event.ev for event in pair.of(0, EvRetired)}
    assert broken in pair.links_of(0, gone)


def test_a_denied_link_takes_its_structured_ev_out_of_use():
    pair = Pair(mode="structured")
    denied = apply_denylist(pair.ends[0], pair.qpns[0], TINY, *HOSTS, ["p0-t0-0:p0-t1-1"], 0)
    assert [pair.links_of(0, ev)[1] for ev in denied] == ["p0-t0-0:p0-t1-1"]
    pair.write(50_000)
    assert {ev.ev for ev in pair.ends[0].ev_counters(pair.qpns[0]) if ev.sent} == {
        path.ev for path in structured_paths(TINY, *HOSTS)
    } - set(denied)


def test_a_trimmed_packet_without_an_outer_header_is_asked_for_again():
    pair = Pair(cut=3)
    pair.write(20_000)
    counters = pair.ends[1].qp_counters(pair.qpns[1])
    assert counters.trims_received == 3


def test_an_endpoint_for_segment_lists_refuses_frames_without_one():
    pair = Pair()
    strict = Endpoint(nic_addresses(TINY, "h2"), MrcConfig(), random.Random(1))
    region = pair.ends[1].register_memory(bytearray(500))
    pair.ends[0].post_write(pair.qpns[0], 1, bytes(500), region.address, region.rkey)
    [(port, frame)] = pair.ends[0].frames_to_send(pair.now_ns)
    strict.receive(port, frame, pair.now_ns)
    assert strict.drops.total() == 1


def test_headers_stand_where_they_do_behind_an_outer_header():
    assert bytes(with_room_for_outer(memoryview(b"frame"))) == bytes(40) + b"frame"
