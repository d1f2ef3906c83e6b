"""NICs without queue pairs exchange endpoint requests, with any EV and class [SPEC §6.5]."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrclab.hosts.mrc import Endpoint, MrcConfig, SpecReading
from mrclab.hosts.mrc.events import EndpointAnswered
from mrclab.hosts.mrc.wire import ENDPOINT_QPN, EndpointOp, EndpointRequest, EndpointResponse, Opcode
from mrclab.hosts.rdma.frames import BTH_OFFSET
from tests.support.mrc_pair import reseal
from tests.support.mrc_sim import Sim, ev_value, frame_ev, port_addresses, remote_paths

PLANES, PATHS = 2, 3


def nic(node, *, answers=True, **options):
    """Return a NIC without queue pairs that has a path to every other NIC."""
    made = Endpoint(port_addresses(node, PLANES), MrcConfig(**options))

    def way_back(address, port, ev):
        for other in range(4):
            plane = remote_paths(node, other, PLANES, PATHS).planes[port]
            if other != node and plane.dst == address:
                return plane, next((p for p in plane.paths if p.ev == ev), plane.paths[0])
        return None

    if answers:
        made.answer_strangers(way_back)
    return made


def ask(end, node, peer, plane, path, now_ns=0, op=EndpointOp.EV_PROBE, **options):
    way = remote_paths(node, peer, PLANES, PATHS).planes[plane]
    return end.request_endpoint(op, way, way.paths[path], now_ns, **options)


def carry(source, target, now_ns):
    """Carry all frames of one NIC to another NIC, and return the frames."""
    frames = source.frames_to_send(now_ns)
    for port, frame in frames:
        target.receive(port, frame, now_ns)
    return frames


@pytest.mark.parametrize("op", list(EndpointOp))
def test_a_stranger_is_answered_on_the_ev_that_it_asked_about(op):
    a, b = nic(0), nic(1)
    request = ask(a, 0, 1, 1, 2, 1_000, op)
    ((port, frame),) = carry(a, b, 1_000)
    assert (port, frame_ev(frame)) == (1, ev_value(1, 2))
    ((port, frame),) = carry(b, a, 5_000)
    assert (port, frame_ev(frame), frame[BTH_OFFSET]) == (1, ev_value(1, 2), Opcode.ENDPOINT_RESPONSE)
    assert list(a.events()) == [EndpointAnswered(5_000, ENDPOINT_QPN, request, op, 1, 4_000, False)]
    assert list(b.events()) == []
    assert a.next_timer() is None


def test_the_answers_of_a_batch_come_in_order_of_arrival_with_port_and_rtt():
    a, b = nic(0), nic(1)
    asked = [ask(a, 0, 1, plane, path) for plane in (0, 1) for path in range(PATHS)]
    assert len(set(asked)) == 6
    carry(a, b, 0)
    answers = b.frames_to_send(10)
    for number, (port, frame) in enumerate(reversed(answers)):
        a.receive(port, frame, 1_000 + number)
    found = list(a.events())
    assert [(e.request_id, e.port, e.rtt_ns) for e in found] == [
        (asked[5 - number], (5 - number) // PATHS, 1_000 + number) for number in range(6)
    ]


def test_the_caller_chooses_class_and_status():
    a = nic(0)
    ask(a, 0, 1, 0, 0, op=EndpointOp.PORT_STATUS_UPDATE, dscp=10, port_status_mask=0b10)
    ((_, frame),) = a.frames_to_send(0)
    assert int.from_bytes(frame[14:16], "big") >> 6 & 63 == 10
    assert EndpointRequest.unpack(frame, BTH_OFFSET + 12).port_status_mask == 0b10
    with pytest.raises(ValueError, match="DSCP"):
        ask(a, 0, 1, 0, 0, dscp=64)
    with pytest.raises(ValueError, match="32 bits"):
        ask(a, 0, 1, 0, 0, port_status_mask=1 << 32)
    assert a.frames_to_send(0) == []


def test_a_request_without_answer_ends_after_its_time():
    a = nic(0)
    request = ask(a, 0, 1, 1, 0, 5)
    a.frames_to_send(5)
    due = a.next_timer()
    assert due == 5 + a.config.endpoint_timeout_ns
    a.handle_timer(due)
    assert list(a.events()) == [
        EndpointAnswered(due, ENDPOINT_QPN, request, EndpointOp.EV_PROBE, 1, None, False)
    ]


def test_who_knows_no_way_back_does_not_answer():
    a, b = nic(0), nic(1, answers=False)
    ask(a, 0, 1, 0, 0)
    carry(a, b, 0)
    assert b.frames_to_send(0) == []
    assert b.drops.wrong_source == 1


def test_only_the_nic_that_was_asked_may_answer():
    a, b, other = nic(0), nic(1), nic(2)
    request = ask(a, 0, 1, 0, 0)
    a.frames_to_send(0)
    # NIC 2 answers a request that was sent to it, but that has the id of the request to NIC 1.
    ask(a, 0, 2, 0, 0)
    ((port, frame),) = a.frames_to_send(0)
    at = BTH_OFFSET + 9
    forged = bytearray(frame)
    forged[at : at + 3] = request.to_bytes(3, "big")
    other.receive(port, reseal(bytes(forged)), 0)
    carry(other, a, 1)
    assert list(a.events()) == []
    assert a.drops.wrong_source == 1
    assert b.drops.total() == 0


def test_the_hold_time_is_taken_out_if_both_add_it():
    reading = SpecReading(service_time=True)
    a, b = nic(0, reading=reading), nic(1, reading=reading)
    ask(a, 0, 1, 0, 0)
    carry(a, b, 0)
    carry(b, a, 128 * 50)
    (answer,) = a.events()
    assert (answer.rtt_ns, answer.adjusted) == (0, True)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, (1 << 128) - 1),
    st.one_of(st.just(1), st.integers(0, (1 << 24) - 1)),
    st.booleans(),
    st.integers(0, 60),
)
def test_no_request_or_answer_breaks_a_nic(bits, psn, answers, length):
    a, b = nic(0), nic(1)
    request = ask(a, 0, 1, 0, 0)
    ((port, frame),) = a.frames_to_send(0)
    changed = bytearray(frame[: BTH_OFFSET + 12]) + bits.to_bytes(16, "big") * 4
    changed = changed[: BTH_OFFSET + 12 + length]
    changed[BTH_OFFSET] = Opcode.ENDPOINT_RESPONSE if answers else Opcode.ENDPOINT_REQUEST
    changed[BTH_OFFSET + 9 : BTH_OFFSET + 12] = psn.to_bytes(3, "big")
    b.receive(port, reseal(bytes(changed) + bytes(4)), 0)
    out = b.frames_to_send(1)
    assert len(out) <= 1
    assert not list(b.events())
    if not out:
        return
    ((back, answer),) = out
    assert not EndpointResponse.unpack(answer, BTH_OFFSET + 12).op >> 2
    number = psn & 0xFFFF
    assert int.from_bytes(answer[BTH_OFFSET + 9 : BTH_OFFSET + 12], "big") == number, (
        "the answer has the id asked for: the 16 low bits of the PSN"
    )
    a.receive(back, answer, 2)
    assert [event.request_id for event in a.events()] == ([request] if number == request else [])
    assert a.drops.wrong_source == (number != request)


@pytest.mark.parametrize("first_bit", [0, 1])
def test_the_first_port_has_bit_0_or_1_of_the_mask(first_bit):
    reading = SpecReading(port_mask_first_bit=first_bit)
    sim = Sim(seed=1, planes=3, paths=2, config=MrcConfig(reading=reading), keep_frames=True)
    sim.ends[0].set_port_state(1, False, sim.now_ns)
    sim.run(1_000_000)
    updates = [s.frame for s in sim.sightings if s.frame[BTH_OFFSET] == Opcode.ENDPOINT_REQUEST]
    masks = {EndpointRequest.unpack(frame, BTH_OFFSET + 12).port_status_mask for frame in updates}
    assert masks == {0b101 << first_bit}
    assert [plane.peer_up for plane in sim.ends[1].qps[sim.qpns[1]].evs.planes] == [True, False, True]
