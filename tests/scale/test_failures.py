"""Monte Carlo, compared with closed forms. The seeds are fixed, so no test fails by chance.

A correct program misses a bound for one seed in a million at most.
"""

from math import exp, sqrt

import numpy as np
import pytest

from mrclab.scale.fabric import Design, blast_radius
from mrclab.scale.failures import (
    Kind,
    Outages,
    covered_hours,
    draw,
    kinds_of,
    most_at_once,
    most_of_a_group,
    out_at,
)
from mrclab.scale.figures import EVS, FIG4_DEAD_PATHS, figures_at_scale, losses_of_qps
from mrclab.scale.job import live, stall_ns, study, useful_share, useful_share_expected
from mrclab.scale.parts import Job, Parts, parse_parts

PARTS = Parts()
SIGMAS = 5


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def within(found: float, expected: float, deviation: float) -> None:
    assert abs(found - expected) <= SIGMAS * deviation, (found, expected, deviation)


def test_as_many_fail_as_the_rate_says_and_as_many_are_out_as_poisson_says() -> None:
    kind = Kind("link", 1000, 100.0, 0.5)  # 10 parts fail in an hour, and 5 are down at a time
    hours = 4000.0
    outages = draw(kind, hours, rng())
    events = int((outages.start >= 0).sum())
    within(events, kind.per_hour * hours, sqrt(kind.per_hour * hours))
    instants = np.arange(10.0, hours, 10.0)  # 20 repair times apart, so the values are almost independent
    out = np.bincount(out_at(outages, instants)[0], minlength=len(instants))
    n = len(instants)
    within(out.mean(), kind.mean_out, sqrt(kind.mean_out / n))
    for most in (2, 5, 8):
        p = sum(exp(-5) * 5**k / np.prod(np.arange(1, k + 1, dtype=float)) for k in range(most + 1))
        within(float((out <= most).mean()), p, sqrt(p * (1 - p) / n))
    assert most_at_once(outages, hours) >= out.max()


def test_a_life_starts_with_what_failed_before_it() -> None:
    kind = Kind("switch", 1000, 1000.0, 12.0)  # 12 parts are down at a time
    out = [len(out_at(draw(kind, 1.0, rng(seed)), np.array([0.0]))[0]) for seed in range(300)]
    within(float(np.mean(out)), 12.0, sqrt(12.0 / 300))


def test_intervals_are_counted_once() -> None:
    start = np.array([-1.0, 0.5, 0.75, 3.0, 9.5])
    assert covered_hours(start, np.array([2.0, 0.1, 1.0, 1.0, 4.0]), 10.0) == pytest.approx(1.75 + 1.0 + 0.5)
    many = np.sort(rng().uniform(-1, 1000, 2002))  # two failures in an hour; each lasts for half an hour
    share = covered_hours(many, 0.5, 1000.0) / 1000
    assert share == pytest.approx(1 - exp(-2 * 0.5), abs=0.05)


def test_the_most_at_once_and_in_a_group() -> None:
    kind = Kind("link", 8, 1.0, 1.0)
    outages = Outages(
        kind, np.array([0.0, 1.0, 1.0, 2.0]), np.array([2.0, 3.0, 3.0, 4.0]), np.array([0, 1, 5, 1])
    )
    assert most_at_once(outages, 10.0) == 3
    instants = np.array([0.5, 1.5, 2.5, 5.0])
    pairs = out_at(outages, instants)
    assert np.bincount(pairs[0], minlength=4).tolist() == [1, 3, 3, 0]
    assert most_of_a_group(pairs, 4, 4).tolist() == [1, 2, 1, 0]
    assert most_of_a_group(pairs, 8, 4).tolist() == [1, 3, 2, 0]


@pytest.mark.parametrize("per_hour", [0.0, 0.2, 2.0])
def test_work_that_lasts_is_as_daly_has_it(per_hour: float) -> None:
    job, hours = Job(), 200_000.0
    crashes = np.sort(rng().uniform(0, hours, rng(2).poisson(per_hour * hours)))
    assert useful_share(crashes, hours, job) == pytest.approx(useful_share_expected(per_hour, job), abs=5e-3)


def test_work_between_crashes_is_counted_in_checkpoints() -> None:
    job = parse_parts("job: {checkpoint_every: 1 h, restart: 1 h, timeout: 0 s}", "t").job
    # Until the first crash, 2 of 2.5 h of work count. The second crash comes 0.5 h later, during the restart
    # of 1 h. The next restart ends at 4 h, and then 6 h of work count.
    assert useful_share(np.array([2.5, 3.0]), 10.0, job) == pytest.approx((2 + 6) / 10)
    assert useful_share(np.array([]), 10.0, job) == 1
    assert useful_share(np.array([11.0]), 10.0, job) == 1


@pytest.mark.parametrize(("shape", "sprays"), [((2, 8), True), ((3, 1), False)])
def test_a_study_agrees_with_its_closed_forms(shape: tuple[int, int], sprays: bool) -> None:
    runs = 6
    built = Design(*shape, PARTS).built(4096)
    found = study("test", built, PARTS, sprays=sprays, runs=runs, seed=3)
    for count in found.counts:
        within(count.events, count.events_expected, sqrt(count.events_expected / runs) + 1e-9)
    within(found.restarts.mean(), found.restarts_expected, sqrt(found.restarts_expected / runs))
    assert found.useful.mean() == pytest.approx(found.useful_expected, abs=0.02)
    assert ((found.goodput > 0) & (found.goodput <= 1)).all()
    assert (found.goodput_with_others <= found.goodput).all()
    again = study("test", built, PARTS, sprays=sprays, runs=runs, seed=3)
    assert (again.goodput == found.goodput).all()


def test_a_plane_less_is_felt_by_mrc_and_ends_a_job_of_one_port() -> None:
    instants = np.array([1.0])
    host = Kind("host_link", 800, 1.0, 1.0)

    def life(planes: int, *, sprays: bool) -> tuple[int, float]:
        built = Design(2, planes, PARTS).built(100)
        outages = {"host_link": Outages(host, np.array([0.5]), np.array([5.5]), np.array([3]))}
        found = live(built, outages, PARTS.job, sprays=sprays, hours=10.0, instants=instants, rng=rng())
        return found.restarts, float(found.capacity[0])

    assert life(8, sprays=True) == (0, 7 / 8)
    assert life(4, sprays=True) == (0, 3 / 4)
    assert life(1, sprays=True) == (1, 1.0)
    assert life(1, sprays=False) == (1, 1.0)


def test_links_of_one_t0_and_plane_add_up() -> None:
    built = Design(2, 8, PARTS).built(512)
    link = Kind("fabric_link", built.fabric_links, 1.0, 1.0)
    instants = np.array([1.0, 3.0])

    def capacity(*parts: int) -> list[float]:
        n = len(parts)
        outages = {"fabric_link": Outages(link, np.zeros(n), np.full(n, 2.0), np.array(parts))}
        found = live(built, outages, PARTS.job, sprays=True, hours=4.0, instants=instants, rng=rng())
        return found.capacity.tolist()

    assert capacity(0) == [255 / 256, 1.0]
    assert capacity(0, 1) == [254 / 256, 1.0]
    assert capacity(0, 256) == [255 / 256, 1.0]
    assert capacity(7, 7) == [255 / 256, 1.0]


@pytest.mark.parametrize("shape", [(2, 1), (2, 8), (3, 1), (3, 2), (4, 1)])
def test_a_failure_above_the_t0_costs_the_job_its_blast_radius(shape: tuple[int, int]) -> None:
    """The slowest NIC loses the share of the blast radius, for each tier of links and of switches."""
    built = Design(*shape, PARTS).built(2_000)
    kinds = {kind.name: kind for kind in kinds_of(built, PARTS.failures)}
    first = {"fabric_link": 0, "upper": 0}
    for row in blast_radius(built):
        name = "fabric_link" if "-T" in row.kind and "NIC" not in row.kind else "upper"
        if row.kind in ("T0", "plane") or not row.kind.startswith("T"):
            continue
        part = np.array([first[name] + row.count // 2])
        outages = {name: Outages(kinds[name], np.zeros(1), np.ones(1), part)}
        found = live(
            built,
            outages,
            PARTS.job,
            sprays=True,
            hours=1.0,
            instants=np.array([0.5]),
            rng=rng(),
        )
        assert 1 - float(found.capacity[0]) == pytest.approx(row.of_each), row.kind
        first[name] += row.count
    assert first == {name: kinds[name].count for name in first}


def test_losses_at_the_start_have_their_mean_and_spread() -> None:
    lost, q = losses_of_qps(20_000, rng()), FIG4_DEAD_PATHS
    mean, variance = EVS * q / (1 - q), EVS * q / (1 - q) ** 2
    within(float(lost.mean()), mean, sqrt(variance / 20_000))
    assert float(lost.var()) == pytest.approx(variance, rel=0.1)


def test_the_figures_rows_hold_their_derivations() -> None:
    found = figures_at_scale(PARTS, rng())
    rows = {(row.figure, row.quantity): row for row in found.rows}
    assert {row.figure for row in found.rows} == {4, 6, 7, 8}
    assert rows[8, "queue pairs that the T1's death hits"].model == "25%"
    assert rows[6, "throughput while a T0 module flaps"].model == "7.0 to 5.25 Pbit/s"
    assert [curve.figure for curve in found.curves] == [4, 6]


def test_a_flap_stalls_a_routed_job_for_the_carrier_alone_and_a_silent_fault_for_the_routing() -> None:
    job = Job()
    assert stall_ns(job, "fabric_link_flap", sprays=False) == job.carrier_ns == 50_000_000
    assert stall_ns(job, "fabric_link", sprays=False) == job.reroute_ns
    assert stall_ns(job, "fabric_link_flap", sprays=True) == job.mrc_stall_ns
    assert stall_ns(job, "host_link_flap", sprays=True) == job.mrc_port_stall_ns
