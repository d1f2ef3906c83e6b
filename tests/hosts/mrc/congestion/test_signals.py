"""The input of congestion control: RTT samples, nominal sizes, the receiver's penalty."""

import pytest

from mrclab.hosts.mrc import Endpoint, MrcConfig
from mrclab.hosts.mrc.config import NsccConfig
from mrclab.hosts.mrc.congestion import CongestionControl, make_controller
from mrclab.hosts.mrc.outstanding import SentPacket, WorkRequest
from mrclab.hosts.mrc.sending.answers import by_entropy, by_stamp
from mrclab.hosts.mrc.wire import NackReason, Sack, timestamp
from mrclab.hosts.rdma.frames import BTH_OFFSET
from tests.support.endpoint_state import set_receiver_penalty, set_refusal
from tests.support.mrc_pair import Pair
from tests.support.mrc_sim import Network, Sim, mark_ce, trim

NOMINAL = 8 + 12 + 4 + 16 + 4 + 40
"""The nominal size of a packet without its payload: UDP, BTH, METH, RETH, ICRC, and 40 [SPEC §8.3.1]."""


# RTT samples


def transmissions(*sent):
    """Return the last transmission of a packet that was sent on these EVs (by index) at these times."""
    sim = Sim(seed=1)
    evs = list(sim.ends[0].qps[sim.qpns[0]].evs.by_value.values())
    packet = None
    for tries, (index, sent_ns) in enumerate(sent):
        request = WorkRequest(1, memoryview(b""), 0, 0, None, 0, 0)
        packet = SentPacket(7, sent_ns, evs[index], request, 0, 0, tries, packet)
    return packet, [ev.value for ev in evs]


@pytest.mark.parametrize(
    ("sent", "answered", "rtt_ns"),
    [
        ([(0, 1_000)], 0, 9_000),
        ([(0, 1_000), (1, 4_000)], 1, 6_000),
        ([(0, 1_000), (1, 4_000)], 0, None),  # the first transmission arrived late
        ([(0, 1_000), (0, 4_000)], 0, None),  # either transmission may have arrived
        ([(0, 1_000), (1, 4_000), (2, 5_000)], 2, None),  # sent more than twice [UEC]
    ],
)
def test_without_timestamps_a_packet_sent_again_is_dated_by_its_new_ev(sent, answered, rtt_ns):
    packet, values = transmissions(*sent)
    assert by_entropy(10_000, packet, values[answered]) == rtt_ns


def test_an_echoed_timestamp_dates_either_transmission_however_long_ago():
    wrap_ns = 128 << 16  # the 16-bit timestamp wraps after 8.4 ms
    times = (10_000, 3 * wrap_ns + 5_000)
    packet, _ = transmissions(*((0, sent_ns) for sent_ns in times))
    now_ns = 20 * wrap_ns
    for sent_ns in times:
        assert by_stamp(now_ns, packet, timestamp(sent_ns)) == now_ns - sent_ns
    assert by_stamp(now_ns, packet, timestamp(10_000) + 1) is None, "a stamp that no transmission had"


def retransmitted(timestamps):
    """Acknowledge a retransmission. Return the number of new RTT samples, and the last sample."""
    sim = Sim(seed=3, config=MrcConfig(timestamps=timestamps, sack_threshold_bytes=1))
    region = sim.ends[1].register_memory(bytearray(8192))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(8192), region.address, region.rkey)
    lost = sim.ends[0].frames_to_send(1_000_000, None, 1)
    second = sim.ends[0].frames_to_send(2_000_000, None, 1)
    rtt = sim.ends[0].qps[sim.qpns[0]].requester.recovery.rtt

    def answer(frames, now):
        for port, frame in frames:
            sim.ends[1].receive(port, frame, now)
        for port, frame in sim.ends[1].frames_to_send(now):
            sim.ends[0].receive(port, frame, now)

    assert lost
    answer(second, 2_100_000)
    before = rtt.samples
    answer(sim.ends[0].frames_to_send(2_100_000), 2_177_000)
    return rtt.samples - before, rtt.latest_ns


@pytest.mark.parametrize("timestamps", [True, False])
def test_the_answer_to_a_retransmission_gives_an_rtt_sample(timestamps):
    assert retransmitted(timestamps) == (1, 77_000)


def test_a_packet_that_is_sent_again_and_again_remembers_two_transmissions():
    sim = Sim(seed=3)
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(100), 0, 0)
    requester = sim.ends[0].qps[sim.qpns[0]].requester
    sent = []
    for now in range(1_000, 4_000, 1_000):
        assert requester.emit_frames(now, [], 8, None) == 1
        (packet,) = requester.board.in_flight()
        sent.append(packet)
        requester.board.on_lost(packet)
    assert sent[2].previous is sent[1]
    assert sent[1].previous is None


def test_the_rtt_of_a_short_packet_is_made_that_of_a_full_one():
    """If short packets on slow links lowered the base RTT, full packets would seem late."""

    def base_rtt(size, byte_ns):
        knobs = NsccConfig(base_rtt_ns=10_000_000, byte_ns=byte_ns)
        network = Network(delay_ns=20_000, jitter_ns=0, port_rate_bps=8_000_000)
        sim = Sim(
            seed=1, config=MrcConfig(congestion="nscc", nscc=knobs, transport_ack=False), network=network
        )
        region = sim.ends[1].register_memory(bytearray(size))
        sim.ends[0].post_write(sim.qpns[0], 1, bytes(size), region.address, region.rkey)
        sim.run(100_000_000)
        return sim.ends[0].qps[sim.qpns[0]].requester.congestion.nscc.base_rtt_ns

    # The port needs 1 us a byte, so 96 bytes arrive 4 ms before 4096. Headers of a probe are 4 bytes shorter.
    full = base_rtt(4096, 1000.0)
    assert base_rtt(96, 1000.0) == pytest.approx(full, abs=4_000)
    assert base_rtt(96, 0.0) <= full - 3_996_000


# Nominal sizes, which count in the window


def test_rcvd_bytes_counts_nominal_sizes_of_packets_that_came_whole_and_once():
    sim = Sim(seed=2, config=MrcConfig(sack_threshold_bytes=1, transport_ack=False))
    region = sim.ends[1].register_memory(bytearray(1 << 14))
    sizes = [4096, 5, 0]
    for n, size in enumerate(sizes):
        sim.ends[0].post_write(sim.qpns[0], n, bytes(size), region.address, region.rkey, imm=7 if n else None)
    frames = sim.ends[0].frames_to_send(0)
    units = []
    for port, frame in [frames[0], frames[1], frames[1], frames[2]]:
        sim.ends[1].receive(port, frame, 0)
        (answer,) = sim.ends[1].frames_to_send(0)
        units.append(Sack.unpack(answer[1], BTH_OFFSET + 12).rcvd_units)
    # 4096 + 84 = 4180 B are 16.3 units. 5 B, padded to 8, with 4 B of immediate data make 4276, 16.7 units.
    # The duplicate adds nothing. 88 B more make 4364, 17.05 units. Each is rounded up.
    assert NOMINAL == 84
    assert units == [17, 17, 17, 18]


def test_timestamps_add_to_nominal_sizes_at_both_ends():
    config = MrcConfig(sack_threshold_bytes=1, timestamps=True, congestion="nscc", transport_ack=False)
    sim = Sim(seed=2, config=config)
    region = sim.ends[1].register_memory(bytearray(1 << 18))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(61 * 4096), region.address, region.rkey)
    control = sim.ends[0].qps[sim.qpns[0]].requester.congestion
    frames = []
    while len(frames) < 61:
        sent = sim.ends[0].frames_to_send(sim.now_ns, None, 1)
        assert control.inflight_bytes == 4096 + 88
        for port, frame in sent:
            sim.ends[1].receive(port, frame, sim.now_ns)
        for port, frame in sim.ends[1].frames_to_send(sim.now_ns):
            sim.ends[0].receive(port, frame, sim.now_ns)
            units = Sack.unpack(frame, BTH_OFFSET + 12).rcvd_units
        assert control.inflight_bytes == 0
        frames += sent
    # 61 * 4184 = 255,224 B. Without the timestamp's 4 B each: 254,980 B, 996.02 units.
    assert units == 997 == -(-61 * 4184 // 256)


@pytest.mark.parametrize(("cwnd_bytes", "packets"), [(1, 1), (8191, 2), (8192, 2), (8193, 3)])
def test_a_packet_may_start_while_the_window_is_not_full(cwnd_bytes, packets):
    pair = Pair(cwnd_bytes=cwnd_bytes)
    pair.post(8 * 4096)
    assert len(pair.send()) == packets


# Reports of losses to the congestion control


class Recorder(CongestionControl):
    """A recorder of the packets that do not arrive, with their nominal sizes."""

    overhead_bytes = NOMINAL

    def __init__(self, notes):
        super().__init__(1 << 30)
        self.notes = notes

    def on_trim(self, now_ns, lost_bytes, last_hop):
        super().on_trim(now_ns, lost_bytes, last_hop)
        self.notes.append(("trimmed at the last hop" if last_hop else "trimmed", lost_bytes))

    def on_loss(self, now_ns, lost_bytes):
        super().on_loss(now_ns, lost_bytes)
        self.notes.append(("lost", lost_bytes))

    def on_withdrawn(self, size):
        super().on_withdrawn(size)
        self.notes.append(("withdrawn", size))


class Reports(CongestionControl):
    """A recorder of the bytes and RTTs that SACKs and NACKs of the peer report."""

    byte_ns = 2.0
    reads_rcvd_bytes = True

    def __init__(self, notes):
        super().__init__(1 << 30)
        self.notes = notes

    def on_arrived(self, arrived_bytes):
        self.notes.append(arrived_bytes)

    def on_nack_rtt(self, rtt_ns):
        self.notes.append(rtt_ns)


def reporting(*sizes):
    """Return two ends, the frames of the first end's writes of these sizes, and the first end's records."""
    notes = []
    config = MrcConfig(sack_threshold_bytes=1, transport_ack=False)

    def make(ports, _, rng):
        return Endpoint(ports, config, rng, lambda _: Reports(notes))

    sim = Sim(seed=1, endpoint_class=make)
    region = sim.ends[1].register_memory(bytearray(1 << 16))
    for n, size in enumerate(sizes):
        sim.ends[0].post_write(sim.qpns[0], n, bytes(size), region.address, region.rkey)
    return sim, sim.ends[0].frames_to_send(0), notes


def test_rcvd_bytes_makes_up_for_a_lost_sack_and_counts_nothing_twice():
    sim, frames, notes = reporting(4096, 4096, 4096)
    sacks = []
    for frame in frames:
        sim.ends[1].receive(*frame, 0)
        sacks += sim.ends[1].frames_to_send(0)
    late, second, third = sacks
    for sack in (second, second, late, third):
        sim.ends[0].receive(*sack, 40_000)
    # A packet has 4180 B. 8360 B are 33 units of 256 B, rounded up, and 12,540 B are 49 units.
    assert [n for n in notes if n] == [33 * 256, 16 * 256]


def test_the_rtt_of_a_nack_counts_as_that_of_a_full_packet():
    sim, frames, notes = reporting(1000, 3000)
    sim.ends[1].receive(frames[0][0], trim(frames[0][1]), 0)
    set_refusal(sim.ends[1], sim.qpns[1], NackReason.NO_RESOURCE)
    sim.ends[1].receive(*frames[1], 0)
    for nack in sim.ends[1].frames_to_send(0):
        sim.ends[0].receive(*nack, 40_000)
    # 2 ns for each missing byte: 4096 of the trimmed packet, and 1096 of the refused one.
    assert notes == [40_000 + 8192, 40_000 + 2192]


@pytest.mark.parametrize(("rcvd_bytes_clock", "counted"), [(True, 2000), (False, 1500)])
@pytest.mark.parametrize("rate_bps", [0, 10**9])
def test_nscc_counts_what_arrived_or_what_was_acknowledged(rcvd_bytes_clock, counted, rate_bps):
    knobs = NsccConfig(rcvd_bytes_clock=rcvd_bytes_clock, nack_rtt=True)
    control = make_controller(MrcConfig(congestion="nscc", nscc=knobs, rate_bps=rate_bps))
    nscc = (control._window if rate_bps else control).nscc
    control.on_sent(0, 30_000)
    assert control.reads_rcvd_bytes == rcvd_bytes_clock
    if rcvd_bytes_clock:
        control.on_arrived(2000)
    control.on_ack(1, 1000, None, False)
    control.on_ack(1, 500, None, False)
    assert (nscc._received, control.inflight_bytes) == (counted, 28_500)
    control.on_nack_rtt(30_000)
    assert nscc.base_rtt_ns == 30_000


def test_every_nack_reaches_congestion_control_as_what_it_is():
    notes = []
    sim = Sim(
        seed=1, endpoint_class=lambda ports, _, rng: Endpoint(ports, None, rng, lambda _: Recorder(notes))
    )
    a, b = sim.ends
    region = b.register_memory(bytearray(1 << 16))
    for n, size in enumerate((1000, 2000, 3000)):
        a.post_write(sim.qpns[0], n, bytes(size), region.address, region.rkey)
    (port, first), (way, second), third = a.frames_to_send(0)
    b.receive(port, trim(first), 0)
    b.receive(way, trim(second, last_hop=True), 0)
    set_refusal(b, sim.qpns[1], NackReason.NO_RESOURCE)
    b.receive(*third, 0)
    for nack in b.frames_to_send(0):
        a.receive(*nack, 40_000)
    assert notes == [
        ("trimmed", 1000 + NOMINAL),
        ("trimmed at the last hop", 2000 + NOMINAL),
        ("withdrawn", 3000 + NOMINAL),
    ]
    assert a.qps[sim.qpns[0]].requester.congestion.inflight_bytes == 0


# ECN marks


@pytest.mark.parametrize(("always_skip_after", "marks"), [(0, [0, 1, 1]), (1, [0, 2, 2]), (2, [0, 1, 2])])
def test_a_ce_mark_reaches_congestion_control_whichever_mark_answers_it(always_skip_after, marks):
    acks = []

    class Marks(CongestionControl):
        def on_ack(self, now_ns, acked_bytes, rtt_ns, ecn):
            super().on_ack(now_ns, acked_bytes, rtt_ns, ecn)
            acks.append(ecn)

    config = MrcConfig(always_skip_after=always_skip_after, sack_threshold_bytes=1, transport_ack=False)

    def make(ports, _, rng):
        return Endpoint(ports, config, rng, lambda _: Marks(1 << 30))

    sim = Sim(seed=1, planes=1, paths=1, endpoint_class=make)
    a, b = sim.ends
    region = b.register_memory(bytearray(3 * 4096))
    a.post_write(sim.qpns[0], 1, bytes(3 * 4096), region.address, region.rkey)
    seen = []
    for number, (port, frame) in enumerate(a.frames_to_send(0)):
        b.receive(port, mark_ce(frame) if number else frame, 0)
        for answer in b.frames_to_send(0):
            seen.append(Sack.unpack(answer[1], BTH_OFFSET + 12).mark)
            a.receive(*answer, 40_000)
    assert seen == marks
    assert acks == [False, True, True]


# The receiver's penalty


def penalised(penalty):
    """Return a sender, its congestion control, and the answers to its first packets.

    The window is about 46 packets.
    """
    config = MrcConfig(congestion="nscc", nscc=NsccConfig(link_bps=20_000_000_000), sack_threshold_bytes=1)
    sim = Sim(seed=2, config=config)
    region = sim.ends[1].register_memory(bytearray(1 << 18))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(1 << 18), region.address, region.rkey)
    answers = []
    for n, (port, frame) in enumerate(sim.ends[0].frames_to_send(0, None, 4)):
        set_receiver_penalty(sim.ends[1], sim.qpns[1], penalty if n % 2 else 0)
        sim.ends[1].receive(port, frame, 0)
        answers += sim.ends[1].frames_to_send(0)
    return sim.ends[0], sim.ends[0].qps[sim.qpns[0]].requester.congestion, answers


def test_the_penalty_of_each_sack_acts_on_what_it_acknowledges():
    sender, control, answers = penalised(64)
    first = control.cwnd_bytes
    sender.receive(*answers[0], 52_000)
    assert (control.penalty, control.cwnd_bytes) == (0, first)
    sender.receive(*answers[1], 52_000)
    # Two packets are still in flight. Half of the acknowledged packet is subtracted.
    assert (control.penalty, control.cwnd_bytes) == (64, 2 * 4180 - 2090)
    sender.receive(*answers[2], 52_000)
    assert (control.penalty, control.cwnd_bytes) == (0, 2 * 4180 - 2090)


def test_a_sack_that_was_overtaken_brings_no_old_penalty():
    sender, control, answers = penalised(64)
    sender.receive(*answers[2], 52_000)
    before = control.cwnd_bytes
    sender.receive(*answers[1], 52_000)
    assert (control.penalty, control.cwnd_bytes) == (0, before)
