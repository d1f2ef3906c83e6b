"""Judges look at a result and nothing else: one with the paper's shape passes, one without fails."""

import json
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import pytest

from experiments.figures.verdict import Check, Verdict, judge, rates_mbps
from linux.errors import InputError

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


SIZES = ("2MiB", "4MiB", "16MiB")


def collective(clean: float, tenth: float, one: float, name: str) -> dict[str, dict[str, Any]]:
    """Bandwidths, the same at all sizes: an operation's time is as many times longer."""
    return {
        name + suffix: {"summary": {f"time_us@{size}": {"n": 3, "mean": 1e6 / value} for size in SIZES}}
        for suffix, value in (("", clean), ("-0.1%", tenth), ("-1%", one))
    }


@pytest.mark.parametrize("figure", ["fig16", "fig17"])
def test_the_papers_own_values_pass_and_others_do_not(figure: str) -> None:
    values = {
        "fig16": [(375, 339, 151, "mrc"), (223, 193, 32, "rocev2"), (362, 214, 28, "rocev2-16qp")],
        "fig17": [(361, 331, 234, "mrc"), (327, 323, 126, "rocev2"), (295, 298, 125, "rocev2-16qp")],
    }
    paper: dict[str, dict[str, Any]] = {}
    for row in values[figure]:
        paper |= collective(*row)
    assert judge(figure, result(**paper))["holds"] is True
    assert judge(figure, result(**paper | collective(375, 339, 20, "mrc")))["holds"] is False
    assert judge(figure, result(mrc={"summary": {}}))["holds"] is None


def test_who_leads_is_asked_at_every_size_but_the_smallest() -> None:
    paper = collective(375, 339, 151, "mrc") | collective(223, 193, 32, "rocev2")
    paper |= collective(362, 214, 28, "rocev2-16qp")
    paper["rocev2-1%"]["summary"]["time_us@2MiB"]["mean"] = 1.0
    assert judge("fig16", result(**paper))["holds"] is True
    paper["rocev2-1%"]["summary"]["time_us@4MiB"]["mean"] = 1.0
    found = judge("fig16", result(**paper))
    assert found["holds"] is False
    assert (
        "MRC over rocev2 at 1%, least of the sizes from 4MiB: 0.000151 times (at least 2 times)"
        in (found["because"])
    )


def flows(*rates: float) -> dict[str, Any]:
    samples = [{"metrics": {"flow_mbps": list(rates)}}]
    return {"samples": samples, "summary": summary(goodput_mbps=sum(rates))}


def with_nics(rate: str, **transports: dict[str, Any]) -> dict[str, Any]:
    """A result on a fabric whose NICs have four links of that rate."""
    found = result(**transports)
    links = {kind: {"rate": rate} for kind in ("host", "fabric")}
    fabric = {"name": "f", "planes": 4, "t0": 2, "t1": 2, "hosts": 4, "links": links}
    found["parameters"] |= {"topology": json.dumps(fabric), "topology_where": "here"}
    return found


def test_flows_of_an_incast_and_of_a_permutation() -> None:
    nics = partial(with_nics, "100 Mbit/s")
    assert judge("fig18", nics(mrc=flows(55, 56, 389), rocev2=flows(57, 57, 319)))["holds"] is True
    assert judge("fig18", nics(mrc=flows(55, 56, 97), rocev2=flows(57, 57, 319)))["holds"] is False
    assert judge("fig18", nics(mrc=flows(20, 56, 389), rocev2=flows(57, 57, 319)))["holds"] is False
    pfc = {"rocev2-1qp": flows(49, 49, 97), "rocev2-8qp": flows(48, 74, 25)}
    assert judge("fig21", nics(**pfc, **{"mrc-8qp": flows(55, 55, 389)}))["holds"] is True
    assert judge("fig21", nics(**pfc, **{"mrc-8qp": flows(55, 55, 97)}))["holds"] is False
    even, uneven = flows(390, 390, 390), flows(131, 196, 391)
    assert judge("fig20", result(mrc=even, rocev2=uneven))["holds"] is True
    assert judge("fig20", result(mrc=uneven, rocev2=even))["holds"] is False


def test_an_all_reduce_against_its_links() -> None:
    def mrc(gbps: float) -> dict[str, Any]:
        return {"summary": {"busbw_gbps@64MiB": {"n": 2, "mean": gbps}}}

    # 400 Mbit/s of links, of which 4096 bytes of 4234 are payload.
    assert judge("all_reduce", with_nics("100 Mbit/s", mrc=mrc(0.28)))["holds"] is True
    assert judge("all_reduce", with_nics("100 Mbit/s", mrc=mrc(0.26)))["holds"] is False


def test_marks_move_a_flow() -> None:
    def transport(before: int, after: int, lost: int = 0) -> dict[str, Any]:
        carried = {"p0-t0-2:p0-t1-1": [before] * 20 + [after] * 20}
        links = {"repetition": 0, "start_us": 0, "bin_us": 100_000, "bytes": carried}
        rates = series(lambda t: 30 if t < 2 else 70, 4, lambda t: lost)
        return {"series": [rates], "links": [links]}

    def verdict(**transports: dict[str, Any]) -> Any:
        found = result(4, **transports)
        asked = {"second_at_ns": 2 * 10**9, "rate_bps": 30 * 10**6, "second_rate_bps": 40 * 10**6}
        found["parameters"]["workload"] |= asked
        return judge("fig14", found)["holds"]

    stays = transport(100, 100)
    assert verdict(mrc=transport(100, 180), oblivious=stays) is True
    assert verdict(mrc=stays, oblivious=stays) is False
    assert verdict(mrc=transport(100, 180, lost=1), oblivious=stays) is False


def test_the_headline_needs_both_factors() -> None:
    def recovered(us: float | None, not_felt: int = 0) -> dict[str, Any]:
        row = {"n": 3 if us is not None else 0, "not_felt": not_felt, "p50": us}
        return {"summary": {"recovered_us": row}}

    slow = recovered(2_900_000)
    good = result(mrc=recovered(900), bfd=recovered(130_000, not_felt=2), **{"bgp-hold": slow})
    found = judge("headline", good)
    assert found["holds"] is True
    assert "144 times (at least 100 times; n 3, 2 not felt against n 3)" in found["because"]
    assert judge("headline", result(mrc=recovered(2000), bfd=recovered(130_000)))["holds"] is False
    assert judge("headline", result(mrc=recovered(900)))["holds"] is None
    unfelt = judge("headline", result(mrc=recovered(None, not_felt=3), bfd=recovered(130_000)))
    assert unfelt["holds"] is None
    assert "n 3 against n 0, 3 not felt" in unfelt["because"]


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
