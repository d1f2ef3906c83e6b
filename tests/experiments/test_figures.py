"""Judges look at a result and nothing else: one with the paper's shape passes, one without fails."""

import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from experiments.figures.verdict import Check, Verdict, judge, rates_mbps
from topologies import InputError

BIN_US = 5000
Rate = Callable[[float], float]


def series(rate: Rate, seconds: float, lost: Callable[[float], int] = lambda t: 0) -> dict[str, Any]:
    """One repetition: Mbit/s and losses as functions of the time in seconds, from 100 ms before."""
    bins = round((seconds + 0.1) * 1e6 / BIN_US)
    times = [i * BIN_US / 1e6 - 0.1 for i in range(bins)]
    return {
        "repetition": 0,
        "start_us": -100_000,
        "bin_us": BIN_US,
        "bytes": [round(rate(t) * BIN_US / 8) for t in times],
        "lost": [lost(t) for t in times],
    }


def result(seconds: float = 0, **transports: dict[str, Any]) -> dict[str, Any]:
    empty = {"summary": {}, "samples": [], "series": []}
    parameters = {"workload": {"duration_ns": round(seconds * 1e9)}}
    return {"parameters": parameters, "transports": {n: empty | t for n, t in transports.items()}}


def summary(**metrics: float) -> dict[str, Any]:
    return {name: {"n": 3, "p50": value, "p90": value, "p99": value} for name, value in metrics.items()}


def steps(shares: list[float]) -> Rate:
    """Half a second of each share of 100 Mbit/s."""
    return lambda t: 100 * shares[max(0, min(len(shares) - 1, int(t / 0.5)))]


STEPPED = steps([1, 0.75, 0.5, 0.25, 0.25, 0.5, 0.75, 1])


@pytest.mark.parametrize("figure", ["fig09a", "fig19"])
def test_steps_of_capacity(figure: str) -> None:
    good = result(4, mrc={"series": [series(STEPPED, 4)]})
    assert judge(figure, good)["holds"] is True
    assert judge(figure, result(4, mrc={"series": [series(lambda t: 100, 4)]}))["holds"] is False
    json.dumps(judge(figure, good))


@pytest.mark.parametrize(
    ("figure", "seconds", "good", "bad"),
    [
        ("fig09b", 3, lambda t: 50 if 1 <= t < 2 else 100, lambda t: 100 if t < 1 else 50),
        ("fig09c", 3, lambda t: 100, lambda t: 20 if 2 <= t < 2.5 else 100),
        ("fig09d", 3, lambda t: 100, lambda t: 0 if 1 <= t < 2 else 100),
        ("fig10", 3, lambda t: 100 if t < 1 else 75, lambda t: 100 if t < 1 else 0),
        ("fig11", 4, lambda t: 100, lambda t: 100 if t < 1 else 60),
        ("fig06", 4.5, lambda t: 40 if 1.5 <= t < 3 else 100, lambda t: 100 if t < 1.5 else 40),
    ],
)
def test_rates_over_time(figure: str, seconds: float, good: Rate, bad: Rate) -> None:
    assert judge(figure, result(seconds, mrc={"series": [series(good, seconds)]}))["holds"] is True
    assert judge(figure, result(seconds, mrc={"series": [series(bad, seconds)]}))["holds"] is False


def test_losses_that_end_and_that_go_on() -> None:
    ends = series(lambda t: 100, 3, lambda t: 5 if 1 <= t < 1.1 else 0)
    goes_on = series(lambda t: 100, 3, lambda t: 1 if t >= 1 else 0)
    assert judge("fig12", result(3, mrc={"series": [ends]}, oblivious={"series": [goes_on]}))["holds"] is True
    assert (
        judge("fig12", result(3, mrc={"series": [goes_on]}, oblivious={"series": [goes_on]}))["holds"]
        is False
    )
    early = series(lambda t: 100, 3, lambda t: 5 if 0 <= t < 0.2 else 0)
    always = series(lambda t: 100, 3, lambda t: 1)
    assert judge("fig04", result(3, mrc={"series": [early]}, oblivious={"series": [always]}))["holds"] is True
    assert (
        judge("fig04", result(3, mrc={"series": [always]}, oblivious={"series": [always]}))["holds"] is False
    )
    blip = series(lambda t: 100, 4, lambda t: 5 if 1 <= t < 1.1 else 0)
    assert judge("fig08", result(4, mrc={"series": [blip]}))["holds"] is True


def collective(clean: float, tenth: float, one: float, name: str) -> dict[str, dict[str, Any]]:
    sizes = ("busbw_gbps@64KiB", "busbw_gbps@1MiB")
    return {
        name + suffix: {"summary": summary(**dict.fromkeys(sizes, value))}
        for suffix, value in (("", clean), ("-0.1%", tenth), ("-1%", one))
    }


@pytest.mark.parametrize("figure", ["fig16", "fig17"])
def test_the_papers_own_values_pass_and_others_do_not(figure: str) -> None:
    paper = (
        collective(375, 339, 151, "mrc")
        | collective(223, 193, 32, "rocev2")
        | collective(362, 214, 28, "rocev2-16qp")
    )
    assert judge(figure, result(**paper))["holds"] is True
    other = paper | collective(375, 339, 20, "mrc")
    assert judge(figure, result(**other))["holds"] is False
    assert judge(figure, result(mrc={"summary": summary(busbw_gbps=1)}))["holds"] is None


def test_flows_of_an_incast_and_of_a_permutation() -> None:
    def flows(*rates: float) -> dict[str, Any]:
        samples = [{"metrics": {"flow_mbps": list(rates)}}]
        return {"samples": samples, "summary": summary(goodput_mbps=sum(rates))}

    assert judge("fig18", result(mrc=flows(55, 56, 389), rocev2=flows(57, 57, 319)))["holds"] is True
    assert judge("fig18", result(mrc=flows(55, 56, 97), rocev2=flows(57, 57, 319)))["holds"] is False
    even, uneven = flows(390, 390, 390), flows(131, 196, 391)
    assert judge("fig20", result(mrc=even, rocev2=uneven))["holds"] is True
    assert judge("fig20", result(mrc=uneven, rocev2=even))["holds"] is False


def test_the_headline_needs_both_factors() -> None:
    def whole(us: float) -> dict[str, Any]:
        return {"summary": summary(whole_us=us)}

    good = result(mrc=whole(900), bfd=whole(130_000), **{"bgp-hold": whole(2_900_000)})
    assert judge("headline", good)["holds"] is True
    assert judge("headline", result(mrc=whole(2000), bfd=whole(130_000)))["holds"] is False
    assert judge("headline", result(mrc=whole(900)))["holds"] is None


def test_training_under_flaps() -> None:
    good = {"summary": {"step_us": {"n": 9, "p50": 100.0, "p90": 110.0}, **summary(stalled_share=0.02)}}
    assert judge("fig05", result(mrc=good))["holds"] is True
    bad = {"summary": {"step_us": {"n": 9, "p50": 100.0, "p90": 300.0}, **summary(stalled_share=0.02)}}
    assert judge("fig05", result(mrc=bad))["holds"] is False


def test_a_failed_check_says_what_was_found() -> None:
    verdict = Verdict((Check("a", "1", True), Check("b", "2 (at least 3)", False)), "the paper").to_dict()
    assert verdict["because"] == "b: 2 (at least 3)"
    assert verdict["paper"] == "the paper"
    with pytest.raises(InputError, match="there is no 'fig99'"):
        judge("fig99", result())


def test_bins_begin_at_the_measurement() -> None:
    found = rates_mbps(result(1, mrc={"series": [series(lambda t: 8, 1)]}), "mrc", 200_000)
    ((starts, rates),) = found
    assert starts[0] == 0
    assert rates.tolist() == [8.0] * 5


def test_every_figure_has_the_papers_values() -> None:
    for figure in ("fig04", "fig05", "fig06", "fig08", "fig09a", "fig16", "fig20", "headline"):
        assert import_module(f"experiments.figures.{figure}").PAPER
