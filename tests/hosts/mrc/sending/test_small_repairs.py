"""Rules of retransmission that matter only if events happen in a rare order."""

from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.mrc.evs.ev import Ev, Plane
from mrclab.hosts.mrc.outstanding import Scoreboard, SentPacket, WorkRequest
from mrclab.hosts.mrc.packets import DataPacket
from mrclab.hosts.mrc.received import Messages
from mrclab.hosts.mrc.wire import Opcode
from tests.support.mrc_sim import Sim, ev_value, opcode, remote_paths, stream


def test_a_lost_packet_that_a_bitmap_acknowledges_is_not_sent_again():
    board = Scoreboard(1 << 24, 128)
    request = WorkRequest(1, memoryview(b"abc"), 0, 0, None, 0, 0)
    plane = Plane(remote_paths(0, 1, 1, 1).planes[0])
    ev = Ev(plane, plane.paths.paths[0], {})
    packets = [SentPacket((1 << 24) + n, 10 * n, ev, request, n, 1, 0, None) for n in range(3)]
    for packet in packets:
        board.on_sent(packet)
    board.on_lost(packets[1])
    acked, found = board.apply_sack((1 << 24) - 1, 1 << 24, 0b110)
    assert acked == [packets[2]]
    assert found == [packets[1]], "it had arrived"
    assert board.oldest_lost() is None
    assert not board.lost


def test_an_ev_of_a_plane_that_went_down_meanwhile_is_not_probed():
    """The probe waits until its port is free, but the port goes down before that."""
    sim = Sim(seed=2, planes=2, paths=2, config=MrcConfig(probe_interval_ns=1_000_000), keep_frames=True)
    end, qpn = sim.ends[0], sim.qpns[0]
    sim.network.dead.add(ev_value(1, 0))
    stream(sim, [200_000])
    sim.run(20_000_000, until=lambda: bool(end.qps[qpn].evs.bad))
    while not any(ev is not None for ev, _ in end.qps[qpn].requester.probes.wanted):
        due = end.next_timer()
        end.handle_timer(due)
        end.frames_to_send(due, [0])
    end.qps[qpn].evs.set_plane(due, 1, False, remote=True)
    frames = end.frames_to_send(due)
    assert [port for port, frame in frames if opcode(frame) == Opcode.PROBE_REQUEST and port == 1] == []
    assert not any(ev is not None for ev, _ in end.qps[qpn].requester.probes.wanted)


def test_immediates_are_delivered_though_their_numbers_wrap():
    messages = Messages()
    for n in range(0x10000 + 3):
        number = n & 0xFFFF
        packet = DataPacket(1, 100, Opcode.WRITE_ONLY_IMM, 0, number, number, 0, 0, 0, 1, n, None, 1)
        assert messages.add(packet, True) == [(n, 1, n & 0xFFFF)]
