"""The verdict on a result: by the judge of its figure, the scenario's expectations, and general rules.

The general rules find contradictions in a result, for instance a rate above the links' rate.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from mrclab.experiments.judging.criteria import at_least, at_most
from mrclab.experiments.judging.readings import (
    Result,
    pooled,
    samples,
    series_of,
    times_us,
    transport_of,
    trials_of,
)
from mrclab.experiments.judging.scale import bus_factor, most_mbps, nic_mbps_of
from mrclab.experiments.judging.verdict import Check, Verdict
from mrclab.experiments.result.model import EXPECTED, TIMES
from mrclab.experiments.result.statistics import MIN_FOR_INTERVAL, Interval, interval_of, interval_of_ratio
from mrclab.experiments.spec.claim import (
    MODULES,
    Expectation,
    Quantity,
    own_judge,
    parse_expectation,
    require_figure,
)
from mrclab.experiments.spec.model import SIMULATED
from mrclab.topologies.units import size_bytes

OK = "ok"
DELIVERED_SOURCE = "theory: a reliable transport delivers all, as it was sent"
ORDER_SOURCE = (
    "theory: a loss is noticed after it, and what was lost arrives after it was lost and after the detection"
)
TWICE_SOURCE = (
    "theory: repetitions of different seeds differ; one that counts twice makes an interval too narrow"
)
WIRE_SOURCE = "theory: links carry no more than their rate, and nothing takes no time"
FEW_SOURCE = f"an interval of 95 % takes {MIN_FOR_INTERVAL} values"

TIME_METRICS = ("latency_us", "step_us", "time_us")
RATE_METRICS = ("goodput_mbps", "flow_mbps", "busbw_gbps", "algbw_gbps")
MARGIN = 1.05
"""A measured rate may exceed the links' rate by this factor: all bytes of a message count when its last byte
arrives, even bytes that were sent before the measurement."""
STAMP_ERROR_US = 1.0
"""The assumed error, us, of a trial's times, if the trial itself does not give an error."""
BROKEN_FULLY = ("blackhole", "plane-death", "switch-death", "switch-reboot", "flap")
"""Kinds of faults that lose every packet. After such a fault, rerouting cannot be later than recovery."""


def broken_evidence(result: Result) -> list[Check]:
    """Return a failed or "not shown" check for each general rule that the results do not satisfy."""
    return [check for name in result["transports"] for rule in _RULES for check in rule(result, name)]


def too_few(result: Result) -> list[Check]:
    """Return a "not shown" check if an MRC transport has too few repetitions and too few felt faults."""
    counts = {
        name: max(len(samples(result, name)), sum(bool(t["felt"]) for t in trials_of(result, name)))
        for name in result["transports"]
        if is_mrc(result, name)
    }
    name = min(counts, key=lambda key: counts[key], default="")
    if not name or counts[name] >= MIN_FOR_INTERVAL:
        return []
    found = f"{counts[name]} (at least {MIN_FOR_INTERVAL})"
    return [Check(f"repetitions, or faults that took packets, of {name}", found, None, FEW_SOURCE)]


def is_mrc(result: Result, name: str) -> bool:
    """Return True if a transport is MRC. Claims are about MRC, so other transports are allowed to fail."""
    return str(transport_of(result, name).get("kind", name)).startswith("mrc")


def _data(result: Result, name: str) -> Iterator[Check]:
    """Check that every byte arrived as it was sent, in all repetitions and trials."""
    found = transport_of(result, name)
    parts = [found, *found.get("samples", ()), *trials_of(result, name)]
    wrong = [part["integrity"] for part in parts if part.get("integrity", OK) != OK]
    if wrong:
        asked = f"data of {name} that is not as it was sent"
        yield Check(asked, wrong[0], False if is_mrc(result, name) else None, DELIVERED_SOURCE)


def _ended(result: Result, name: str) -> Iterator[Check]:
    ran = transport_of(result, name).get("samples", ())
    failed = [sample["failure"] for sample in ran if sample.get("failure") is not None]
    if failed and is_mrc(result, name):
        found = f"{len(failed)} of {len(ran)}, such as: {failed[0]}"
        yield Check(f"repetitions of {name} that failed", found, False, DELIVERED_SOURCE)


def _order(result: Result, name: str) -> Iterator[Check]:
    """Check that the times of each fault are in the right order, such as the loss before the recovery."""
    trials = trials_of(result, name)
    wrong = [why for trial in trials for why in (_out_of_order(trial),) if why]
    if wrong:
        found = f"{len(wrong)} of {len(trials)}, such as {wrong[0]}"
        yield Check(f"faults of {name} with times out of order", found, None, ORDER_SOURCE)


def _out_of_order(trial: Mapping[str, Any]) -> str:
    """Return a text about two times of a trial that are in the wrong order, or "" if the order is right."""
    pairs = [
        ("first_loss", "detected"),
        ("first_loss", "rerouted"),
        ("first_loss", "recovered"),
        ("detected", "recovered"),
    ]
    if trial.get("fault", {}).get("kind", BROKEN_FULLY[0]) in BROKEN_FULLY:
        pairs.append(("rerouted", "recovered"))
    for early, late in pairs:
        first, second = trial.get(f"{early}_us"), trial.get(f"{late}_us")
        if first is None or second is None:
            continue
        error = sum(trial.get(f"{part}_error_us") or STAMP_ERROR_US for part in (early, late))
        if second < first - error:
            return f"{late} {second:g} us before {early} {first:g} us"
        if min(first, second) < 0 or not math.isfinite(first + second):
            return f"{early} {first:g} us, {late} {second:g} us"
    return ""


def _twice(result: Result, name: str) -> Iterator[Check]:
    """Check that no repetition and no fault occurs twice: compare numbers, times and data.

    In virtual time, RoCEv2's data are not compared: without random choices, all its runs are equal.
    """
    found = transport_of(result, name)
    numbers = [sample.get("repetition") for sample in found.get("samples", ())]
    faults = [
        (trial["repetition"], trial["fault"].get("t_before_ns"), trial["fault"]["where"])
        for trial in trials_of(result, name)
        if "fault" in trial
    ]
    draws = is_mrc(result, name) or result.get("target") != SIMULATED
    again = max(_repeated(numbers), _repeated(faults), _repeated(_fingerprints(found)) if draws else 0)
    if again:
        asked = f"repetitions or faults of {name} that are there more than once"
        yield Check(asked, f"{again:,}", None, TWICE_SOURCE)


def _repeated(keys: list[Any]) -> int:
    known = [key for key in keys if key is not None]
    return len(known) - len(set(known))


def _fingerprints(found: Mapping[str, Any]) -> list[str | None]:
    """Return a text for each repetition, None without values. Equal texts show a copied repetition."""
    rows: dict[Any, list[Any]] = {}
    for sample in found.get("samples", ()):
        values = {key: value for key, value in sample["metrics"].items() if value}
        ends = {key: sample.get(key) for key in ("counters", "measure_ns", "end_ns")}
        rows.setdefault(sample.get("repetition"), []).append((values, ends) if values else None)
    for key in ("bytes", "lost"):
        for series in found.get("series", ()):
            rows.setdefault(series.get("repetition"), []).append(series[key] if any(series[key]) else None)
    return [json.dumps(parts) if any(part is not None for part in parts) else None for parts in rows.values()]


def _carried(result: Result, name: str) -> Iterator[Check]:
    """Check that no rate is above the rate of the links, and no time is too short for the sent bytes."""
    wrong = list(_impossible(result, name))
    if wrong:
        found = f"{len(wrong)}, such as {wrong[0]}"
        yield Check(f"values of {name} that no link can carry", found, None, WIRE_SOURCE)


def _impossible(result: Result, name: str) -> Iterator[str]:
    nic = MARGIN * nic_mbps_of(result, name)
    each = bus_factor(result)
    for sample in samples(result, name):
        whole = MARGIN * most_mbps(result, name, int(sample.get("repetition", 0)))
        for metric, values in sample["metrics"].items():
            base, _, size = metric.partition("@")
            if not values or base not in (*TIME_METRICS, *RATE_METRICS):
                continue
            low, high = min(values), max(values)
            if not math.isfinite(low + high) or low < 0 or (base in TIME_METRICS and low == 0):
                yield f"{metric} of {low:g}"
            if base == "goodput_mbps" and high > whole:
                yield f"{metric} of {high:g} over {whole:g} Mbit/s"
            if base == "flow_mbps" and high > nic:
                yield f"{metric} of {high:g} over {nic:g} Mbit/s"
            if base == "busbw_gbps" and high * 1e3 > nic * _seats(result):
                yield f"{metric} of {high:g} over {nic * _seats(result) / 1e3:g} Gbit/s"
            if base == "time_us" and size and low > 0:
                mbps = size_bytes(size) * each * 8 / low
                if mbps > nic * _seats(result):
                    yield f"{metric} of {low:g} us is {mbps:g} over {nic:g} Mbit/s"
    for series in series_of(result, name):
        whole = MARGIN * most_mbps(result, name, series.repetition)
        rate = series.rate_mbps((0.0, series.end_us))
        if rate > whole or rate < 0:
            yield f"{rate:g} Mbit/s over time, over {whole:g}"


def _seats(result: Result) -> int:
    """Return how many ranks share a host and its NIC. Traffic between these ranks does not use the NIC."""
    return int(result["parameters"]["workload"].get("ranks_per_host", 1))


_RULES: tuple[Callable[[Result, str], Iterator[Check]], ...] = (_data, _ended, _order, _twice, _carried)


INVALID = "the run is not valid, so it shows nothing"
UNKNOWN = "the result does not say whether the run is valid, so it shows nothing"


def judge(figure: str, result: Mapping[str, Any], more: Sequence[Check] = ()) -> dict[str, Any]:
    """Return the verdict of a figure's judge on a result, with ``more`` checks after the judge's checks.

    The first checks of the verdict report contradictions in the result, and too few repetitions. If
    ``figure`` is empty, the verdict has only the contradictions and ``more``. Raise InputError if the figure
    has no judge.
    """
    valid = result.get("valid")
    invalid = UNKNOWN if valid is None else "" if valid else INVALID
    checks = (*broken_evidence(result), *more)
    if not figure:
        return Verdict(checks, invalid=invalid).to_dict()
    require_figure(figure)
    if own := own_judge(figure):
        verdict, paper = _judged_by(own, figure, result), ""
    else:
        module = import_module(f"mrclab.experiments.figures.{MODULES[figure]}")
        verdict = getattr(module, f"judge_{figure}")(result)
        paper = getattr(module, f"PAPER_{figure.upper()}")
    checks = (*broken_evidence(result), *too_few(result), *verdict.checks, *more)
    return Verdict(checks, paper or verdict.paper, verdict.notes, invalid).to_dict()


def _judged_by(own: Callable[[Mapping[str, Any]], Any], figure: str, result: Mapping[str, Any]) -> Verdict:
    """Return the verdict of a user's own judge.

    If the judge fails, the verdict has one check, which contains the error and whose outcome is "not shown".
    """
    try:
        verdict = own(result)
    except Exception as error:  # an error in the user's code must not lose the measurements
        return Verdict((Check(f"{figure} judges the result", f"{type(error).__name__}: {error}", None),))
    if not isinstance(verdict, Verdict):
        return Verdict((Check(f"{figure} returns a Verdict", f"it returned {type(verdict).__name__}", None),))
    return verdict


def judge_expectations(result: Result) -> list[Check]:
    """Return a check for each expectation of the result's scenario."""
    lines: Sequence[str] = result["parameters"].get("expect", ())
    return [_judged(result, parse_expectation(line, result["transports"])) for line in lines]


def _judged(result: Result, wanted: Expectation) -> Check:
    for quantity in (wanted.left, wanted.right):
        if quantity is not None and (missing := _missing(result, quantity)):
            return Check(wanted.text, missing, None, EXPECTED)
    ask = at_most if wanted.at_most else at_least
    return ask(wanted.text, _interval(result, wanted), wanted.number, EXPECTED)


def _interval(result: Result, wanted: Expectation) -> Interval | None:
    left = _values(result, wanted.left)
    if wanted.right is None:
        return interval_of(left, wanted.left.statistic)
    return interval_of_ratio(left, _values(result, wanted.right), wanted.left.statistic)


def _values(result: Result, quantity: Quantity) -> list[float]:
    read = times_us if quantity.metric in TIMES else pooled
    return read(result, quantity.transport, quantity.metric)


def _missing(result: Result, quantity: Quantity) -> str:
    """Return the reason why a quantity cannot be judged, or "" if it can be judged."""
    values = _values(result, quantity)
    if not values:
        return f"{quantity.transport} has no {quantity.metric}"
    if quantity.metric in TIMES:
        felt = sum(trial["felt"] is not False for trial in trials_of(result, quantity.transport))
        if len(values) < felt:
            return (
                f"{felt - len(values)} of {felt} faults have no {quantity.metric} with {quantity.transport}"
            )
    return ""
