"""The output of an endpoint: completions, errors, and the frames of queue pairs that take turns."""

import itertools
import random
from collections import defaultdict
from dataclasses import replace

import pytest

from mrclab.hosts.mrc import Endpoint, MrcConfig
from mrclab.hosts.mrc.events import EvSkipped
from mrclab.hosts.mrc.evs.ev import EvInput
from mrclab.hosts.mrc.wire import NackReason, Opcode
from mrclab.hosts.rdma.events import PacketLost
from mrclab.hosts.rdma.frames import BTH_OFFSET
from mrclab.hosts.rdma.paths import Path, PlanePaths, RemotePaths
from tests.support.endpoint_state import set_refusal
from tests.support.mrc_sim import Network, Sim, is_data, port_addresses, remote_paths, trim


def test_frame_layout_from_ethernet_to_icrc():
    sim = Sim(seed=2)
    region = sim.ends[1].register_memory(bytearray(64))
    sim.ends[0].post_write(sim.qpns[0], 1, b"hello", region.address + 8, region.rkey, imm=0x01020304)
    ((port, frame),) = sim.ends[0].frames_to_send(sim.now_ns)
    plane = remote_paths(0, 1, 4, 8).planes[port]
    path = next(p for p in plane.paths if p.ev & 0xFFFF == int.from_bytes(frame[94:96], "big"))
    label = (path.ev >> 16).to_bytes(2, "big")
    udp_length = 8 + 12 + 4 + 16 + 4 + 5 + 3 + 4
    assert frame[:14] == plane.dst_mac + plane.src_mac + b"\x86\xdd"
    # Version 6, DSCP 4, ECT(0); length; next header; hop limit
    assert frame[14:22] == bytes.fromhex("6120") + label + (40 + udp_length).to_bytes(2, "big") + bytes(
        [41, 64]
    )
    assert frame[22:54] == plane.src + path.outer_dst
    assert frame[54:62] == bytes.fromhex("6120") + label + udp_length.to_bytes(2, "big") + bytes([17, 64])
    assert frame[62:94] == plane.src + plane.dst
    assert frame[96:102] == (4791).to_bytes(2, "big") + udp_length.to_bytes(2, "big") + b"\0\0"
    psn = sim.ends[0].local_attributes(sim.qpns[0]).psn
    assert frame[102:114] == b"\xcb\x30\xff\xff" + sim.qpns[1].to_bytes(4, "big") + b"\x80" + psn.to_bytes(
        3, "big"
    )
    assert frame[114:118] == bytes(4)
    assert frame[118:134] == (
        (region.address + 8).to_bytes(8, "big") + region.rkey.to_bytes(4, "big") + (5).to_bytes(4, "big")
    )
    assert frame[134:146] == bytes([1, 2, 3, 4]) + b"hello" + bytes(3)
    assert len(frame) == 150


@pytest.mark.parametrize("trimmed", [True, False])
def test_every_packet_is_in_its_class(trimmed):
    """Switches read the DSCP and ECN bits of IPv6 headers to choose the frames to drop, mark or trim."""
    config = MrcConfig(trim=trimmed, transport_ack=True, probe_interval_ns=1_000_000)
    network = Network(loss=0.05, trim=0.05 if trimmed else 0.0)
    sim = Sim(seed=3, config=config, network=network, keep_frames=True)
    region = sim.ends[1].register_memory(bytearray(1 << 20))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(1 << 20), region.address, region.rkey)
    set_refusal(sim.ends[1], sim.qpns[1], NackReason.NO_RESOURCE)
    sim.at(sim.now_ns + 100_000, lambda: set_refusal(sim.ends[1], sim.qpns[1], None))
    sim.ends[0].set_port_state(3, False, sim.now_ns)
    sim.run(50_000_000)
    classes = defaultdict(set)
    for seen in sim.sightings:
        frame, opcode = seen.frame, seen.frame[BTH_OFFSET]
        outer, inner = (int.from_bytes(frame[at : at + 2], "big") >> 4 & 0xFF for at in (14, 54))
        assert outer == inner
        sent_again = is_data(frame) and frame[BTH_OFFSET + 8] & 0x20
        kind = "again" if sent_again else "data" if is_data(frame) else Opcode(opcode)
        classes[kind].add((outer >> 2, outer & 3))
    dscp, ect0, not_ect = config.dscp, 0b10, 0b00
    control = (
        Opcode.SACK,
        Opcode.NACK,
        Opcode.ACKNOWLEDGE,
        Opcode.ENDPOINT_REQUEST,
        Opcode.ENDPOINT_RESPONSE,
    )
    assert classes == {
        "data": {(dscp.trimmable if trimmed else dscp.no_trim, ect0)},
        "again": {(dscp.trimmable_retx if trimmed else dscp.no_trim, ect0)},
        Opcode.PROBE_REQUEST: {(dscp.no_trim, ect0)},
        **{opcode: {(dscp.control, not_ect)} for opcode in control},
    }


def test_a_marked_ev_is_reported_once_while_it_waits():
    sim = Sim(seed=2)
    evs = sim.ends[0].qps[sim.qpns[0]].evs
    ev = evs.planes[0].active[0]
    evs.on_congestion(0, ev, EvInput.ECN)
    evs.on_congestion(0, ev, EvInput.ECN)
    assert [type(e) for e in sim.ends[0].events()] == [EvSkipped]
    assert next(c for c in sim.ends[0].ev_counters(sim.qpns[0]) if c.ev == ev.value).ecn_marked == 2


def test_a_second_nack_or_one_for_another_ev_is_old_news():
    sim = Sim(seed=2)
    region = sim.ends[1].register_memory(bytearray(100))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(100), region.address, region.rkey)
    ((port, frame),) = sim.ends[0].frames_to_send(sim.now_ns)
    sim.ends[1].receive(port, trim(frame), sim.now_ns)
    ((back, nack),) = sim.ends[1].frames_to_send(sim.now_ns)
    sim.ends[0].receive(back, nack, sim.now_ns)
    assert len(sim.ends[0].frames_to_send(sim.now_ns)) == 1
    sim.ends[0].receive(back, nack, sim.now_ns)
    assert sim.ends[0].frames_to_send(sim.now_ns) == []
    assert sum(isinstance(e, PacketLost) for e in sim.ends[0].events()) == 1


def test_limit_and_free_ports_bound_what_is_handed_out():
    sim = Sim(seed=2)
    region = sim.ends[1].register_memory(bytearray(1 << 20))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(1 << 20), region.address, region.rkey)
    assert len(sim.ends[0].frames_to_send(sim.now_ns, None, 5)) == 5
    assert {port for port, _ in sim.ends[0].frames_to_send(sim.now_ns, {1, 3}, 12)} == {1, 3}
    assert sim.ends[0].frames_to_send(sim.now_ns, set()) == []
    assert len(sim.ends[0].frames_to_send(sim.now_ns, None, 100)) == 64 - 5 - 12


def test_queue_pairs_take_turns():
    sim = Sim(seed=2)
    a, b = sim.ends
    second = [end.create_qp() for end in sim.ends]
    for me in (0, 1):
        sim.ends[me].connect(
            second[me], sim.ends[1 - me].local_attributes(second[1 - me]), remote_paths(me, 1 - me, 4, 8)
        )
    region = b.register_memory(bytearray(1 << 20))
    for qpn in (sim.qpns[0], second[0]):
        a.post_write(qpn, 1, bytes(1 << 18), region.address, region.rkey)
    targets = [frame[107:110] for _, frame in a.frames_to_send(sim.now_ns, None, 32)]
    assert targets.count(sim.qpns[1].to_bytes(3, "big")) == 16


def test_a_turn_lasts_over_several_calls():
    """A queue pair's turn has 16 frames, even if the caller asks for one frame at a time."""
    sim = Sim(seed=2, qps=2)
    a, b = sim.ends
    region = b.register_memory(bytearray(1 << 20))
    for qpn, _ in sim.connections:
        a.post_write(qpn, 1, bytes(1 << 18), region.address, region.rkey)
    targets = [frame[107:110] for _ in range(40) for _, frame in a.frames_to_send(sim.now_ns, None, 1)]
    assert [len(list(run)) for _, run in itertools.groupby(targets)] == [16, 16, 8]


def test_events_and_poll_cq_hand_each_completion_out_once():
    sim = Sim(seed=2)
    end = sim.ends[0]
    end.post_write(sim.qpns[0], 1, b"", 0, 0)
    for port, frame in end.frames_to_send(0):
        sim.ends[1].receive(port, frame, 0)
    for port, frame in sim.ends[1].frames_to_send(0):
        end.receive(port, frame, 0)
    assert [e.wr_id for e in end.poll_cq()] == [1]
    assert end.next_event() is None


def test_a_peer_without_trim_nacks_is_sent_nothing_trimmable():
    config = MrcConfig()
    a, b = Endpoint(port_addresses(0, 2), config), Endpoint(port_addresses(1, 2), MrcConfig(trim=False))
    qpns = a.create_qp(), b.create_qp()
    a.connect(qpns[0], b.local_attributes(qpns[1]), remote_paths(0, 1, 2, 2))
    a.post_write(qpns[0], 1, b"x", 0, 0)
    ((_, frame),) = a.frames_to_send(0)
    assert (frame[14] & 15) << 2 | frame[15] >> 6 == config.dscp.no_trim
    assert frame[15] >> 4 & 3 == 2, "ECT(0) all the same"


def test_bad_arguments_are_refused():
    end = Endpoint(port_addresses(0, 2))
    with pytest.raises(ValueError, match="not connected"):
        end.post_write(end.create_qp(), 1, b"", 0, 0)
    with pytest.raises(ValueError, match="writable"):
        end.register_memory(memoryview(b"fixed"))
    paths = Path(1, bytes(16)), Path(1, bytes(15) + b"1")
    with pytest.raises(ValueError, match="unique"):
        RemotePaths((PlanePaths(0, bytes(6), bytes(6), bytes(16), bytes(16), paths),))
    with pytest.raises(ValueError, match="mpr"):
        MrcConfig(mpr=100)
    peer = Endpoint(port_addresses(1, 3))
    theirs = peer.local_attributes(peer.create_qp())
    with pytest.raises(ValueError, match="port 2"):
        end.connect(end.create_qp(), theirs, remote_paths(0, 1, 3, 2))


def test_busy_ports_do_not_pile_up_probes():
    sim = Sim(seed=2, config=MrcConfig(exponential_retries=25, probe_interval_ns=1_000_000))
    end = sim.ends[0]
    region = sim.ends[1].register_memory(bytearray(1 << 20))
    end.post_write(sim.qpns[0], 1, bytes(1 << 16), region.address, region.rkey)
    frames = end.frames_to_send(sim.now_ns, None, 100)
    for port, frame in frames[4:]:
        sim.ends[1].receive(port, frame, sim.now_ns + 500_000)
    for port, frame in sim.ends[1].frames_to_send(sim.now_ns + 500_000):
        end.receive(port, frame, sim.now_ns + 500_000)
    for _ in range(200):
        end.handle_timer(end.next_timer())
        assert end.frames_to_send(end.next_timer(), set()) == []
    probes = [
        f
        for _, f in end.frames_to_send(end.next_timer(), None, 1000)
        if f[BTH_OFFSET] == Opcode.PROBE_REQUEST
    ]
    assert 1 <= len(probes) <= 4


def test_queue_pairs_to_one_peer_share_the_heads_of_their_paths():
    sim = Sim(seed=2, qps=2)
    one, other = (sim.ends[0].qps[pair[0]].evs.by_value for pair in sim.connections)
    assert one
    assert all(one[value].heads is other[value].heads for value in one)


def test_queue_pairs_that_come_and_go_leave_bounded_memory():
    """With ECMP each connection draws new EVs. Their cached headers must be removed with the connection."""
    config = MrcConfig(ev_mode="ecmp", max_active_evs=256)
    end, far = (Endpoint(port_addresses(n, 1), config, random.Random(n)) for n in (0, 1))
    remote = far.local_attributes(far.create_qp())
    (plane,) = remote_paths(0, 1, 1, 1).planes
    for turn in range(20):
        paths = tuple(Path(turn << 8 | number, None) for number in range(256))
        qpn = end.create_qp()
        end.connect(qpn, remote, RemotePaths((replace(plane, paths=paths),)))
        end.destroy_qp(qpn)
    assert 0 < len(end._heads._heads) <= 4096
