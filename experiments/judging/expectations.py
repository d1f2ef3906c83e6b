"""A scenario's own expectations, judged from its result with intervals.

Values of all valid repetitions of a transport are pooled: for the times of faults one of each trial, for all
else the values in ``samples``. The interval of a quantile, and of a ratio of two, is the bootstrap's.
"""

from __future__ import annotations

from collections.abc import Sequence

from mrclab.experiments.judging.criteria import at_least, at_most
from mrclab.experiments.judging.readings import Result, pooled, times_us, trials_of
from mrclab.experiments.judging.verdict import Check
from mrclab.experiments.result.model import EXPECTED, TIMES
from mrclab.experiments.result.statistics import Interval, interval_of, interval_of_ratio
from mrclab.experiments.spec.expectations import Expectation, Quantity, parse_expectation


def judge_expectations(result: Result) -> list[Check]:
    """Return a check for each expectation that the result's scenario has."""
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
    """Return why a quantity cannot be judged; "" if it can be."""
    values = _values(result, quantity)
    if not values:
        return f"{quantity.transport} has no {quantity.metric}"
    if quantity.metric in TIMES:
        felt = sum(trial["felt"] for trial in trials_of(result, quantity.transport))
        if len(values) < felt:
            return (
                f"{felt - len(values)} of {felt} faults have no {quantity.metric} with {quantity.transport}"
            )
    return ""
