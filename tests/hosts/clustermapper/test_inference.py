"""Clustermapper's verdicts from probes, in virtual time."""

import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mrclab.hosts.clustermapper.inference import Deaf, Verdict, poisson_tail
from mrclab.topologies import load_fabric
from tests.support.fabric_sim import MS, ProbedFabric

LAB, TINY = load_fabric("lab"), load_fabric("tiny")
FABRICS = {"lab": LAB, "tiny": TINY}
LINKS = [("tiny", x.name) for x in TINY.links[::3]] + [("lab", x.name) for x in LAB.links[::17]]
SWITCHES = [("tiny", x.name) for x in TINY.switches[::2]] + [("lab", x.name) for x in LAB.switches[::9]]


@pytest.mark.parametrize(("topology", "link"), LINKS)
def test_a_dead_link_is_named_and_nothing_else(topology: str, link: str) -> None:
    sim = ProbedFabric(FABRICS[topology])
    sim.run(20)
    sim.loss[link] = 1.0
    died = sim.now
    (verdict,) = sim.run(100)
    assert isinstance(verdict, Verdict)
    assert (verdict.place, verdict.cause) == (link, "dead")
    assert died <= verdict.first_loss_ns <= died + 2 * MS
    assert verdict.t_ns - died < 30 * MS
    assert sim.mapper.denied == {link}
    sim.loss.clear()
    sim.run(300)
    assert sim.cleared == [link]
    assert sim.mapper.denied == frozenset()
    assert sim.named == [link]


@pytest.mark.parametrize(("topology", "switch"), SWITCHES)
def test_a_dead_switch_is_named_and_nothing_else(topology: str, switch: str) -> None:
    sim = ProbedFabric(FABRICS[topology])
    sim.run(20)
    sim.break_node(switch)
    sim.run(100)
    assert sim.named == [switch]
    assert {link for link in sim.plan.links if switch in link} == sim.mapper.denied
    sim.loss.clear()
    sim.run(300)
    assert sim.cleared == [switch]
    assert sim.named == [switch]


@pytest.mark.parametrize(("guessable", "named"), [(True, []), (False, ["h0:p0-t0-0"])])
def test_a_host_that_cannot_guess_ids_does_not_hide_a_dead_link(guessable: bool, named: list[str]) -> None:
    rng = random.Random(5)
    sim = ProbedFabric(TINY, draw_id=None if guessable else lambda: rng.getrandbits(64))
    sim.run(20)
    sim.loss["h0:p0-t0-0"] = 1.0
    for _ in range(100):
        sent = sim.mapper.tally.sent
        sim.run(1)
        for number in range(sent, sim.mapper.tally.sent):
            sim.mapper.received(number, sim.now)
    assert sim.named == named


def test_what_was_lost_before_a_link_was_mended_is_not_held_against_it() -> None:
    """Stalled CPUs delay the evaluation of lost probes until the link works again."""
    sim = ProbedFabric(TINY)
    sim.run(20)
    link = "p1-t0-1:p1-t1-0"
    sim.loss[link] = 1.0
    while not sim.named:
        sim.run(1)
    for turn in range(40):
        if turn == 10:
            sim.loss.clear()
        sim.mapper.stalled(sim.now)
        sim.run(4)
    sim.run(200)
    assert sim.named == sim.cleared == [link]


@pytest.mark.parametrize("plane", ["p2"])
def test_a_dead_plane_is_named_as_one(plane: str) -> None:
    sim = ProbedFabric(LAB)
    sim.run(20)
    for link in sim.plan.links:
        if f"{plane}-" in link:
            sim.loss[link] = 1.0
    sim.run(100)
    assert sim.named == [plane]
    sim.loss.clear()
    sim.run(300)
    assert sim.cleared == [plane]


@pytest.mark.slow
@pytest.mark.parametrize("loss", [0.3, 0.05])
@pytest.mark.parametrize("link", ["p1-t0-2:p1-t1-3", "h5:p2-t0-2"])
def test_a_lossy_link_is_named_and_nothing_else(link: str, loss: float) -> None:
    sim = ProbedFabric(LAB, seed=round(loss * 100))
    sim.run(20)
    sim.loss[link] = loss
    sim.run(1_500)
    assert sim.named == [link]


def test_a_link_that_loses_one_in_a_hundred_is_found_within_seconds() -> None:
    sim = ProbedFabric(TINY)
    sim.loss["p0-t0-1:p0-t1-0"] = 0.01
    sim.run(4_000)
    assert sim.named == ["p0-t0-1:p0-t1-0"]


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_two_dead_links_are_both_named_and_no_third(data: st.DataObject) -> None:
    names = st.sampled_from([link.name for link in LAB.links])
    links = data.draw(st.lists(names, min_size=2, max_size=2, unique=True))
    # Exclude two cut NICs of one T0: if all NICs of a T0 are cut off, Clustermapper names the T0.
    nics = [link.split(":")[1] for link in links if link.startswith("h")]
    assume(len(nics) == len(set(nics)))
    sim = ProbedFabric(LAB, seed=data.draw(st.integers(0, 99)))
    sim.run(10)
    for link in links:
        sim.loss[link] = 1.0
        sim.run(data.draw(st.integers(1, 20)))
    sim.run(100)
    assert sorted(sim.named) == sorted(links)
    sim.loss.clear()
    sim.run(300)
    assert sorted(sim.cleared) == sorted(links)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_nothing_is_named_where_all_is_well_however_slow(seed: int) -> None:
    """Round-trip times vary, and for a while all probes are late, but no probe is lost."""
    rng = random.Random(seed)
    stalls = sorted((rng.randrange(1_000, 3_000), rng.choice((3, 20, 200))) for _ in range(8))

    def delay(now: int) -> int:
        ms = now // MS
        for begin, length in stalls:
            if begin <= ms < begin + length:
                return (begin + length) * MS - now
        return rng.choice((0, 0, 0, 500_000))

    sim = ProbedFabric(TINY, seed)
    sim.delay = delay
    sim.run(3_000)
    assert sim.named == []


@pytest.mark.slow
def test_losses_all_over_the_fabric_are_nobodys_fault() -> None:
    sim = ProbedFabric(LAB)
    for link in sim.plan.links:
        sim.loss[link] = 0.02
    sim.run(1_000)
    assert sim.named == []


def test_a_prober_that_hears_nothing_says_so_and_blames_nobody() -> None:
    sim = ProbedFabric(TINY)
    sim.run(20)
    for link in sim.plan.links:
        sim.loss[link] = 1.0
    assert [(type(e), e.deaf) for e in sim.run(2_000) if isinstance(e, Deaf)] == [(Deaf, True)]
    sim.loss.clear()
    assert [e.deaf for e in sim.run(100) if isinstance(e, Deaf)] == [False]
    assert sim.named == []


def test_what_was_under_way_while_a_cpu_stood_still_gets_its_time_again() -> None:
    """A stall of a switch's CPU can outlast a probe's timeout. So a stall restarts all probes' timeouts."""
    sim = ProbedFabric(TINY)
    sim.run(20)
    link = "p0-t0-0:p0-t1-0"
    sim.loss[link] = 1.0
    for _ in range(10):
        sim.mapper.stalled(sim.now)
        sim.run(4)
    assert sim.named == []
    sim.run(20)
    assert sim.named == [link]


@given(st.integers(1, 60), st.floats(1e-6, 50))
def test_poisson_tail_is_a_probability_and_falls(count: int, mean: float) -> None:
    p, fewer = poisson_tail(count, mean), poisson_tail(count - 1, mean)
    assert 0 <= p <= fewer + 1e-9 <= 1 + 2e-9


def test_poisson_tail_agrees_with_tables() -> None:
    assert poisson_tail(1, 1.0) == pytest.approx(0.632120, abs=1e-6)
    assert poisson_tail(5, 1.0) == pytest.approx(0.003660, abs=1e-6)
    assert poisson_tail(20, 1.0) == pytest.approx(1.6e-19, rel=0.1)
