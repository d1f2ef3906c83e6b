"""Options for unclear passages of the specification: each option has its effect and is documented."""

import random
import re
from dataclasses import fields

import pytest

from mrclab.hosts.mrc import Endpoint, MrcConfig, SpecReading
from mrclab.hosts.mrc.config import ACK_LADDERS
from mrclab.hosts.mrc.events import ProbeAnswered
from mrclab.hosts.mrc.evs.ev import EvInput
from mrclab.hosts.mrc.evs.ev_set import EvSet
from mrclab.hosts.mrc.sending.recovery import AckTimer
from mrclab.hosts.mrc.wire import NackReason, Opcode, Sack
from mrclab.hosts.rdma.events import EvState, Status
from mrclab.hosts.rdma.frames import BTH_OFFSET
from mrclab.hosts.rdma.rtt import RttEstimator
from tests.support.mrc_pair import T_SENT, Pair, body
from tests.support.mrc_sim import Network, Sim, ev_value, mark_ce, remote_paths, trim
from tests.support.paths import ROOT


def test_the_documented_readings_are_those_of_the_code():
    text = (ROOT / "docs" / "mrc-endpoint.md").read_text(encoding="utf-8")
    table = text.split("<!-- readings -->")[1].split("<!-- end of readings -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]
    defaults = {f.name: getattr(SpecReading(), f.name) for f in fields(SpecReading)}
    shown = {
        name: f"`{value:#x}`" if name.endswith("_syndrome") else f"`{value}`"
        for name, value in defaults.items()
    }
    assert {row[0].strip("`"): row[1] for row in rows} == shown
    source = (ROOT / "hosts" / "mrc" / "config.py").read_text(encoding="utf-8")
    tags = set(re.findall(r"\bS-[A-Z0-9]+\b|\bUCCL\b|\bGLB\b|\bAPI\b|\bMP\b", source))
    assert tags <= set(re.findall(r"[\w-]+", table))
    assert all(row[2] and row[3] for row in rows), "who reads it so, and who otherwise"


def test_readings_out_of_range_are_refused():
    for bad in ({"udp_port": 0}, {"port_mask_first_bit": 2}, {"skip_ns": -1}, {"max_wimm_syndrome": 0x1F}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            SpecReading(**bad)


# UDP port


@pytest.mark.parametrize("port", [4791, 4971])
def test_either_udp_port_is_accepted_and_the_option_says_which_is_sent(port):
    pair = Pair(reading=SpecReading(udp_port=port))
    pair.post(100)
    ((way, frame),) = pair.send()
    assert frame[96:98] == port.to_bytes(2, "big")
    (sack,) = pair.take([(way, frame)])
    assert sack[96:98] == port.to_bytes(2, "big")


def test_ends_with_different_udp_ports_understand_each_other():
    configs = iter([MrcConfig(reading=SpecReading(udp_port=4971)), MrcConfig()])
    sim = Sim(endpoint_class=lambda ports, _, rng: Endpoint(ports, next(configs), rng))
    region = sim.ends[1].register_memory(bytearray(100))
    sim.ends[0].post_write(sim.qpns[0], 1, b"x" * 100, region.address, region.rkey)
    sim.run(10_000_000)
    assert bytes(region.view) == b"x" * 100
    assert sim.ends[0].drops.not_mrc == sim.ends[1].drops.not_mrc == 0


# The two halves of the EV


@pytest.mark.parametrize("low", [True, False])
def test_the_option_of_the_halves_holds_for_what_is_sent_and_what_arrives(low):
    pair = Pair(reading=SpecReading(ev_low_half_in_udp=low))
    pair.post(100)
    ((way, frame),) = pair.send()
    ev = ev_value(way, 0)
    assert ev >> 16 != ev & 0xFFFF
    source, label = (ev & 0xFFFF, ev >> 16) if low else (ev >> 16, ev & 0xFFFF)
    assert frame[94:96] == source.to_bytes(2, "big")
    assert frame[16:18] == frame[56:58] == label.to_bytes(2, "big")
    (sack,) = pair.take([(way, frame)])
    assert Sack.unpack(sack, BTH_OFFSET + 12).entropy == ev


# The ACK timer


@pytest.mark.parametrize(("ladder", "first_ns"), [("lab", 262_144), ("production", 1_073_741_824)])
def test_ack_ladders_have_names(ladder, first_ns):
    timer = AckTimer(MrcConfig(ack_ladder=ladder), RttEstimator(0))
    waits = []
    for retries in range(10):
        timer.retries = retries
        waits.append(timer.timeout_ns())
    assert waits == [first_ns] * 7 + [2 * first_ns, 4 * first_ns, 8 * first_ns]


@pytest.mark.parametrize(("ladder", "seconds"), [("lab", 34), ("production", 40), ("endless", None)])
def test_a_ladder_ends_after_some_ten_seconds_unless_it_says_otherwise(ladder, seconds):
    timer = AckTimer(MrcConfig(ack_ladder=ladder), RttEstimator(0))
    waited_ns = 0
    for timer.retries in range(100):
        if timer.exhausted:
            break
        waited_ns += timer.timeout_ns()
    assert timer.exhausted is (seconds is not None)
    assert seconds is None or round(waited_ns / 1e9) == seconds


@pytest.mark.parametrize(
    "values", [{"linear_retries": 8}, {"linear_retries": -1}, {"exponential_retries": 26}]
)
def test_retries_have_the_limits_of_the_api(values):
    with pytest.raises(ValueError, match="retries must be in"):
        MrcConfig(**values)
    MrcConfig(linear_retries=7, exponential_retries=25)


@pytest.mark.parametrize(("at_base", "steps"), [(False, [1, 2, 4]), (True, [1, 1, 1])])
def test_a_retransmission_may_begin_at_the_base_interval_again(at_base, steps):
    reading = SpecReading(retransmission_timer_at_base=at_base)
    timer = AckTimer(MrcConfig(reading=reading, linear_retries=1), RttEstimator(0))
    waits = []
    for retries in range(3):
        timer.retries = retries
        timer.on_retransmission(now_ns=5)
        waits.append(timer.timeout_ns() // 262_144)
    assert waits == steps
    assert timer.retries == 2, "they stay counted"


def test_lab_is_the_default_ladder_and_explicit_values_override_it():
    assert MrcConfig().ack_times() == (8, 7, 15) == ACK_LADDERS["lab"]
    config = MrcConfig(ack_ladder="production", ack_timeout_exponent=15, exponential_retries=3)
    assert config.ack_times() == (15, 7, 3)
    with pytest.raises(ValueError, match="lab, production, endless"):
        MrcConfig(ack_ladder="field")


# Service time


@pytest.mark.parametrize(("option", "echo"), [(True, "1238"), (False, "1234")])
def test_service_time_is_added_to_the_echoed_timestamp(option, echo):
    pair = Pair(reading=SpecReading(service_time=option))
    pair.post(100)
    ((port, frame),) = pair.send()
    pair.b.receive(port, frame, T_SENT + 10_000)
    ((_, sack),) = pair.b.frames_to_send(T_SENT + 10_000 + 4 * 128)
    assert f"{Sack.unpack(sack, BTH_OFFSET + 12).tx_timestamp:04x}" == echo


def test_service_time_says_nothing_where_there_was_no_timestamp():
    pair = Pair(timestamps=False, reading=SpecReading(service_time=True))
    pair.post(100)
    ((port, frame),) = pair.send()
    pair.b.receive(port, frame, T_SENT + 10_000)
    ((_, sack),) = pair.b.frames_to_send(T_SENT + 90_000)
    assert Sack.unpack(sack, BTH_OFFSET + 12).tx_timestamp == 0


@pytest.mark.parametrize(("option", "rtt_ns"), [(True, 40_064), (False, 240_000)])
def test_the_requester_takes_the_hold_time_out_of_the_rtt(option, rtt_ns):
    pair = Pair(reading=SpecReading(service_time=option))
    pair.post(100)
    ((port, frame),) = pair.send()
    pair.b.receive(port, frame, T_SENT + 20_000)
    ((way, sack),) = pair.b.frames_to_send(T_SENT + 220_000)
    pair.a.receive(way, sack, T_SENT + 240_000)
    srtt_ns = pair.a.qps[pair.qpn_a].requester.recovery.rtt.srtt_ns
    assert abs(srtt_ns - rtt_ns) <= 128


@pytest.mark.parametrize(("option", "rtt_ns"), [(True, 40_064), (False, 240_000)])
def test_ev_probes_leave_the_hold_time_out_too(option, rtt_ns):
    pair = Pair(reading=SpecReading(service_time=option))
    pair.a.probe_ev(pair.qpn_a, ev_value(1, 0), T_SENT)
    ((port, frame),) = pair.send()
    pair.b.receive(port, frame, T_SENT + 20_000)
    ((way, answer),) = pair.b.frames_to_send(T_SENT + 220_000)
    pair.a.receive(way, answer, T_SENT + 240_000)
    (probed,) = pair.a.events()
    assert abs(probed.rtt_ns - rtt_ns) <= 128


@pytest.mark.parametrize(("option", "rtt_ns"), [(True, 40_064), (False, 240_000)])
def test_reliability_probes_leave_the_hold_time_out_too(option, rtt_ns):
    pair = Pair(reading=SpecReading(service_time=option), ack_timeout_exponent=13)
    pair.post(100)
    pair.send()
    later = pair.a.next_timer()
    pair.a.handle_timer(later)
    ((port, probe),) = pair.send(later)
    pair.b.receive(port, probe, later + 20_000)
    ((way, answer),) = pair.b.frames_to_send(later + 220_000)
    pair.a.receive(way, answer, later + 240_000)
    (answered,) = [event for event in pair.a.events() if isinstance(event, ProbeAnswered)]
    assert abs(answered.rtt_ns - rtt_ns) <= 128


# PSNs beyond the window


@pytest.mark.parametrize("nack", [True, False])
def test_a_trimmed_packet_beyond_the_window_is_answered_like_a_whole_one(nack):
    pair = Pair(reading=SpecReading(oor_nack=nack))
    pair.b.qps[pair.qpn_b].responder.bitmap.mpr = 128
    for n in range(129):
        pair.post(1, wr_id=n)
    *_, (port, last) = pair.send()
    answers = pair.take([(port, trim(last))])
    assert [frame[BTH_OFFSET + 14] for frame in answers] == [NackReason.PSN_OOR_WINDOW] * nack


# The state SKIP


def make(planes, paths, seed=1):
    return EvSet(7, remote_paths(0, 1, planes, paths), MrcConfig(), random.Random(seed), [].append)


def test_one_packet_restores_one_ev_at_most():
    evs = make(planes=1, paths=8)
    for ev in evs.planes[0].active[:7]:
        evs.on_congestion(0, ev, EvInput.ECN)
    skipped = 7
    for _ in range(40):
        assert evs.pick() is not None
        left = sum(ev.state is EvState.SKIP for ev in evs.planes[0].active)
        assert skipped - left in (0, 1)
        skipped = left
    assert skipped == 0


def test_the_packet_at_hand_does_not_take_the_ev_that_it_restores():
    for seed in range(20):
        evs = make(planes=2, paths=4, seed=seed)
        for ev in (plane.active[n] for plane in evs.planes for n in (0, 1)):
            evs.on_congestion(0, ev, EvInput.ECN)
        before = {ev: ev.state for ev in evs.by_value.values()}
        for _ in range(30):
            picked = evs.pick()
            assert before[picked] is not EvState.SKIP
            before = {ev: ev.state for ev in evs.by_value.values()}


def test_where_nothing_else_is_good_the_restored_ev_is_used():
    for seed in range(20):
        evs = make(planes=1, paths=3, seed=seed)
        for ev in evs.planes[0].active:
            evs.on_congestion(0, ev, EvInput.ECN)
        picked = evs.pick()
        assert picked.state is EvState.GOOD
        assert sum(ev.state is EvState.SKIP for ev in evs.planes[0].active) == 2


def test_planes_keep_equal_shares_while_one_of_them_is_congested():
    evs = make(planes=4, paths=4)
    taken = dict.fromkeys(range(4), 0)
    for n in range(400):
        if n % 4 == 0:
            for ev in evs.planes[2].active:
                evs.on_congestion(0, ev, EvInput.ECN)
        taken[evs.pick().port] += 1
    assert taken == dict.fromkeys(range(4), 100)


# WRITE_IMMs beyond the limit


def too_many(syndrome=0x61, **options):
    """Return a pair whose sender sent four writes with immediate, and received the answers.

    Only two such writes may be in flight.
    """
    reading = SpecReading(max_wimm_syndrome=syndrome)
    pair = Pair(max_wimm=2, reading=reading, **options)
    pair.a.qps[pair.qpn_a].requester.queue.max_imms = 5
    pair.post(100, wr_id=0)
    for n in range(1, 5):
        pair.post(100, imm=n, wr_id=n)
    frames = pair.send()
    for port, frame in [frames[0], *frames[2:]]:
        pair.b.receive(port, frame, T_SENT)
    for port, frame in pair.b.frames_to_send(T_SENT):
        pair.a.receive(port, frame, T_SENT + 100_000)
    return pair


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("syndrome", "status"),
    [
        (0x61, Status.REMOTE_INVALID_REQUEST_ERROR),
        (0x63, Status.REMOTE_OPERATION_ERROR),
        (0x7A, Status.REMOTE_OPERATION_ERROR),
    ],
)
def test_too_many_immediates_in_flight_end_both_ends(syndrome, status, strict):
    pair = too_many(syndrome, imm_waits_for_earlier=strict)
    assert [(e.wr_id, e.status) for e in pair.a.poll_cq()] == [
        (0, Status.SUCCESS),
        (1, status),
        *((n, Status.FLUSHED) for n in (2, 3, 4)),
    ]
    assert pair.b.qps[pair.qpn_b].responder.error
    assert pair.a.next_timer() is None


def test_a_lost_nak_is_sent_again():
    pair = Pair(max_wimm=2)
    pair.a.qps[pair.qpn_a].requester.queue.max_imms = 5
    for n in range(5):
        pair.post(100, imm=n, wr_id=n)
    frames = pair.send()
    lost = pair.take(frames[1:])
    assert Opcode.ACKNOWLEDGE in {frame[BTH_OFFSET] for frame in lost}
    again = pair.take(frames[:1])
    assert [frame[BTH_OFFSET] for frame in again] == [Opcode.ACKNOWLEDGE]
    assert body(again[0])[24:26] == "61"


def test_as_many_immediates_as_agreed_on_are_welcome():
    for strict in (True, False):
        sim = Sim(
            seed=5,
            config=MrcConfig(max_wimm=2, imm_waits_for_earlier=strict),
            network=Network(loss=0.2, jitter_ns=50_000),
        )
        region = sim.ends[1].register_memory(bytearray(100))
        for n in range(200):
            sim.ends[0].post_write(sim.qpns[0], n, b"x", region.address, region.rkey, imm=n)
        sim.run(2_000_000_000)
        assert sim.ends[0].qps[sim.qpns[0]].requester.error is None
        assert sim.ends[0].qps[sim.qpns[0]].requester.idle


def test_all_immediates_agreed_on_may_wait_for_an_earlier_write():
    pair = Pair(max_wimm=2)
    for n in range(3):
        pair.post(100, imm=n or None, wr_id=n)
    first, *others = pair.send()
    pair.take([*others, first])
    assert [done.imm for done in pair.b.poll_cq()] == [1, 2]


# ECN marks


def test_a_marked_probe_answer_says_skip_once():
    pair = Pair(ack_timeout_exponent=13)
    pair.post(100)
    pair.send()
    later = pair.a.next_timer()
    pair.a.handle_timer(later)
    ((port, probe),) = pair.send(later)
    (answer,) = pair.take([(port, mark_ce(probe))], later)
    sack = Sack.unpack(answer, BTH_OFFSET + 12)
    assert (sack.probe_reply, sack.mark) == (True, 1)


@pytest.mark.parametrize(("mine", "theirs"), [(True, True), (True, False), (False, True)])
def test_service_time_needs_both_ends(mine, theirs):
    def options(service_time):
        reading = SpecReading(service_time=service_time)
        return {"timestamps": True, "transport_ack": False, "reading": reading}

    configs = iter([MrcConfig(**options(mine)), MrcConfig(**options(theirs))])
    sim = Sim(seed=2, endpoint_class=lambda ports, _, rng: Endpoint(ports, next(configs), rng))
    a, b = sim.ends
    region = b.register_memory(bytearray(100))
    a.post_write(sim.qpns[0], 1, bytes(100), region.address, region.rkey)
    ((port, frame),) = a.frames_to_send(0)
    b.receive(port, frame, 10_240)
    ((way, answer),) = b.frames_to_send(10_240 + 40 * 128)
    held = 40 if mine and theirs else 0
    assert Sack.unpack(answer, BTH_OFFSET + 12).tx_timestamp == held
    a.receive(way, answer, 25_600)
    assert a.qps[sim.qpns[0]].requester.recovery.rtt.srtt_ns == 25_600 - held * 128
