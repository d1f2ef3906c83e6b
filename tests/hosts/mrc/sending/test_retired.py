"""A packet in flight on a retired EV counts as lost if another packet overtakes it, but only once."""

from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mrclab.hosts.mrc import MrcConfig, SpecReading
from mrclab.hosts.mrc.events import EvRetired, RetireReason
from mrclab.hosts.rdma.events import EvState, LossReason, PacketLost, Retransmitted
from tests.support.mrc_pair import T_SENT, Pair
from tests.support.mrc_sim import (
    Network,
    Sim,
    ev_value,
    finish,
    frame_ev,
    frame_psn,
    is_data,
    mark_ce,
    stream,
)

WINDOW = 64
"""The largest number of packets in flight."""


def cut(**options):
    """Run a transfer during which one of eight paths fails silently."""
    options = {"timestamps": True, "sack_threshold_bytes": 1, "sack_coalesce": 1, **options}
    config = MrcConfig(rate_bps=10_000_000_000, rate_burst_bytes=4096, **options)
    network = Network(delay_ns=50_000, jitter_ns=0)
    sim = Sim(seed=3, planes=2, paths=4, config=config, network=network, batch=1)
    data, region = stream(sim, [1 << 20], imm=False)
    sim.at(1_200_000, lambda: network.dead.add(ev_value(0, 1)))
    finish(sim, 1)
    assert bytes(region.view) == data
    return sim


def test_what_is_in_flight_on_a_retired_ev_waits_for_no_second_window():
    sim = cut(min_reorder_ns=40_000)
    [retired] = sim.of(0, EvRetired)
    lost = sim.of(0, PacketLost)
    assert {event.ev for event in lost} == {retired.ev}
    first, *others = lost
    assert first.reason is LossReason.GAP
    assert others
    assert {event.reason for event in others} == {LossReason.RETIRED}
    # A packet is sent every 3.3 us and answered after 100 us. The next answer shows that it was overtaken.
    for event in others:
        assert event.t_ns <= max(retired.t_ns, event.sent_ns + 100_000 + 2 * 3_400)


def test_a_denied_ev_loses_nothing():
    """If an administrator denies an EV, the packets on their way are not lost."""
    config = MrcConfig(sack_threshold_bytes=1)
    sim = Sim(seed=3, planes=2, paths=2, config=config, network=Network(jitter_ns=3_000))
    data, region = stream(sim, [1 << 20], imm=False)
    sim.at(1_030_000, lambda: sim.ends[0].deny([ev_value(0, 0)], sim.now_ns))
    finish(sim, 1)
    assert bytes(region.view) == data
    assert sim.of(0, EvRetired)
    assert not sim.of(0, PacketLost)


def test_what_is_sent_on_a_retired_ev_where_there_is_no_other_has_the_window():
    config = MrcConfig(sack_threshold_bytes=1, min_reorder_ns=30_000, probe_interval_ns=1_000_000_000)
    network = Network(delay_ns=20_000, jitter_ns=20_000, port_rate_bps=10_000_000_000)
    sim = Sim(seed=5, planes=1, paths=1, config=config, network=network)
    dropped = []

    def drop_one(source, port, frame):
        if source == 0 and is_data(frame) and not dropped:
            dropped.append(frame_psn(frame))
            return True
        return False

    sim.unpredictable = drop_one
    data, region = stream(sim, [1 << 21], imm=False)
    finish(sim, 1)
    assert bytes(region.view) == data
    [retired] = sim.of(0, EvRetired)
    assert all(event.sent_ns < retired.t_ns for event in sim.of(0, PacketLost))
    assert len(sim.of(0, PacketLost)) <= WINDOW


DELAYS = st.dictionaries(
    st.sampled_from([(0, 0), (0, 1), (1, 0), (1, 2)]), st.integers(0, 300_000), min_size=1
)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1 << 16),
    delays=DELAYS,
    jitter_ns=st.integers(0, 60_000),
    loss=st.sampled_from([0.0, 0.01]),
    changes=st.lists(st.tuples(st.integers(0, 3_000_000), DELAYS), max_size=4),
    timestamps=st.booleans(),
)
@example(seed=1, delays={(0, 0): 300_000}, jitter_ns=60_000, loss=0.01, changes=[], timestamps=False)
def test_reordering_on_retired_evs_is_repaired_once(seed, delays, jitter_ns, loss, changes, timestamps):
    """Slow paths look dead. Each packet on such a path is sent again only once."""
    network = Network(jitter_ns=jitter_ns, loss=loss, port_rate_bps=5_000_000_000)
    config = MrcConfig(
        timestamps=timestamps,
        sack_threshold_bytes=1,
        initial_rtt_ns=40_000,
        min_reorder_ns=2_000,
        probe_interval_ns=200_000,
    )
    sim = Sim(seed=seed, planes=2, paths=3, config=config, network=network, keep_frames=True)

    def slow(new):
        network.path_delay_ns = {ev_value(*path): extra for path, extra in new.items()}

    slow(delays)
    for after_ns, new in changes:
        sim.at(sim.now_ns + after_ns, lambda new=new: slow(new))
    lengths = [70_001] * 12
    data, region = stream(sim, lengths)
    finish(sim, len(lengths))
    assert bytes(region.view) == data
    assert sim.ends[1].qp_counters(sim.qpns[1]).bytes_placed == len(data), "every byte once"

    retired = Counter(event.ev for event in sim.of(0, EvRetired))
    with_ev = [event for event in sim.of(0, PacketLost) if event.reason is LossReason.RETIRED]
    # A retirement counts the packets in flight on its EV as lost, each only once.
    assert len({(event.psn, event.sent_ns) for event in with_ev}) == len(with_ev)
    for ev, times in retired.items():
        assert sum(event.ev == ev for event in with_ev) <= times * WINDOW
    assert {event.ev for event in with_ev} <= set(retired)
    sent = sum(s.source == 0 and is_data(s.frame) for s in sim.sightings)
    packets = sum(-(-length // 4096) for length in lengths)
    assert sent == packets + len(sim.of(0, Retransmitted))
    assert len(sim.of(0, Retransmitted)) <= WINDOW * sum(retired.values()), "no storm"


@pytest.mark.parametrize(("option", "state"), [(True, EvState.SKIP), (False, EvState.GOOD)])
def test_the_mark_of_the_probe_that_restores_an_ev_acts_as_the_reading_says(option, state):
    """The last answer both restores the EV and has a mark. This mark must not skip an EV that is GOOD."""
    pair = Pair(probe_successes=1, reading=SpecReading(skip_after_marked_probe=option))
    ev = pair.a.qps[pair.qpn_a].evs.planes[0].evs[0]
    pair.a.qps[pair.qpn_a].evs.on_lost(T_SENT, ev, 1, RetireReason.LOSS)
    due = T_SENT + pair.a.config.probe_interval_ns
    pair.post(1)
    pair.take(pair.send())
    pair.a.handle_timer(due)
    probes = [(port, mark_ce(frame)) for port, frame in pair.send(due) if frame_ev(frame) == ev.value]
    (answer,) = pair.take(probes, due)
    assert ev.state is EvState.ASSUMED_BAD
    pair.a.receive(ev.port, answer, due + 40_000)
    assert ev.state is state
