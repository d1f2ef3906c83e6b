"""Criteria: compare a measured interval with a limit that was set before the run.

A criterion holds if the whole 95 % interval fulfils it. The criterion does not hold if no part of the
interval fulfils it. If the limit lies inside the interval, the criterion is "undecided". The check then gives
the factor by which the number of values must grow for a decision. If there are too few values for an
interval, the criterion is "not shown".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mrclab.experiments.judging.verdict import Check
from mrclab.experiments.result.statistics import MIN_FOR_INTERVAL, Interval

TOO_FEW = f"no interval: fewer than {MIN_FOR_INTERVAL} values"
MOST_TIMES = 100.0
"""The largest factor that a check gives, for a measured value that almost equals the limit."""


def at_least(asked: str, found: Interval | None, limit: float, source: str, unit: str = "") -> Check:
    """Check that a value is not below a limit."""
    wanted = f"at least {_number(limit)}{unit}"
    if found is None:
        return Check(asked, TOO_FEW, None, source)
    return _check(asked, found, _decided(found.low >= limit, found.high < limit), wanted, source, unit, limit)


def at_most(asked: str, found: Interval | None, limit: float, source: str, unit: str = "") -> Check:
    """Check that a value is not above a limit."""
    wanted = f"at most {_number(limit)}{unit}"
    if found is None:
        return Check(asked, TOO_FEW, None, source)
    return _check(asked, found, _decided(found.high <= limit, found.low > limit), wanted, source, unit, limit)


def within(asked: str, found: Interval | None, wanted: float, margin: float, source: str) -> Check:
    """Check that a value differs from the wanted value by at most ``margin``."""
    if found is None:
        return Check(asked, TOO_FEW, None, source)
    low, high = wanted - margin, wanted + margin
    holds = _decided(low <= found.low and found.high <= high, found.high < low or found.low > high)
    return _check(asked, found, holds, f"{_number(wanted)} +- {_number(margin)}", source, "", low, high)


def includes(asked: str, found: Interval | None, wanted: float, source: str, width: float) -> Check:
    """Check that the interval includes the value that theory gives, and is at most ``width`` wide."""
    if found is None:
        return Check(asked, TOO_FEW, None, source)
    inside = found.low <= wanted <= found.high
    wide = found.high - found.low
    holds = _decided(inside and wide <= width, not inside)
    more = _times((wide / width) ** 2) if holds is None else None
    return Check(asked, f"{words(found)}; theory: {_number(wanted)}", holds, source, more)


def leads(asked: str, ratio: Interval | None, source: str, times: float = 1.0) -> Check:
    """Check that a ratio is at least ``times`` and more than 1."""
    if ratio is None:
        return Check(asked, TOO_FEW, None, source)
    holds = _decided(ratio.low > 1 and ratio.low >= times, ratio.high < max(1.0, times))
    wanted = f"at least {_number(times)} times" if times > 1 else "more than 1"
    return _check(asked, ratio, holds, wanted, source, "", max(1.0, times))


def present(asked: str, count: int, source: str) -> Check:
    """Check that something happened, for instance that a fault lost packets. A count of 0 is "not shown"."""
    return Check(asked, f"{count:,}", True if count else None, source)


def like_control(asked: str, ratio: Interval | None, limit: float, source: str) -> Check:
    """Check that a value is at most ``limit`` times the control's value.

    If the control's value is more than ``limit`` times the checked value, something disturbed the control.
    Then the criterion is "not shown".
    """
    check = at_most(asked, ratio, limit, source)
    if ratio is not None and ratio.high < 1 / limit:
        disturbed = f"{check.found}; the control was disturbed"
        return replace(check, holds=None, found=disturbed, decided_by=None)
    return check


def none_of(asked: str, count: int | None, source: str) -> Check:
    """Check that something never happened. If the count is None (unknown), the check is "not shown"."""
    return Check(
        asked,
        "not recorded" if count is None else f"{count:,}",
        count if count is None else not count,
        source,
    )


def unless_control_fails(check: Check, control: Check) -> Check:
    """Return ``check``, or a "not shown" check if ``check`` and ``control`` (without faults) both fail."""
    if check.holds is not False or control.holds is True:
        return check
    return replace(check, holds=None, found=f"{check.found}; undisturbed: {control.found}", decided_by=None)


def words(found: Interval, unit: str = "") -> str:
    """Return an interval as text: ``245 us (95 % CI 216 to 282, n 20)``."""
    low, value, high = (_number(v) for v in (found.low, found.value, found.high))
    return f"{value}{unit} (95 % CI {low} to {high}, n {found.n:,})"


def _check(
    asked: str,
    found: Interval,
    holds: bool | None,
    wanted: str,
    source: str,
    unit: str,
    *limits: float,
) -> Check:
    """Return the check of an interval.

    If the interval includes a limit, the check is undecided, and has the factor of `_decided_by`.
    """
    if holds is not None:
        return Check(asked, f"{words(found, unit)}; asked: {wanted}", holds, source)
    straddles = f"{words(found, unit)} straddles the limit, {wanted}"
    return Check(asked, straddles, None, source, _decided_by(found, limits))


def _decided_by(found: Interval, limits: Sequence[float]) -> float:
    """Return the factor by which the number of values must grow so that no limit lies inside the interval.

    The interval's width shrinks with the square root of the number of values. An infinite value is a ratio
    without events in its denominator. Then the interval's lower end grows with the number of events.
    """
    most = 1.0
    for limit in limits:
        if math.isinf(found.value):
            most = max(most, limit / found.low if found.low > 0 else MOST_TIMES)
        elif found.low <= limit <= found.high:
            half = found.value - found.low if limit < found.value else found.high - found.value
            apart = abs(found.value - limit)
            most = max(most, (half / apart) ** 2 if apart else MOST_TIMES)
    return _times(most)


def _times(factor: float) -> float:
    return min(MOST_TIMES, math.ceil(10 * factor + 1) / 10)


def _decided(yes: bool, no: bool) -> bool | None:
    return True if yes else False if no else None


def _number(value: float) -> str:
    """Return a number with four digits, because a limit and a value may differ only in the fourth digit."""
    return "infinite" if math.isinf(value) else f"{value:,.0f}" if abs(value) >= 1e3 else f"{value:.4g}"
