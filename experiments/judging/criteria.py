"""Criteria: an interval held against a limit that was set beforehand.

A criterion holds where the whole 95 % interval fulfils it, does not hold where no part of it does, and is not
shown where the limit lies inside the interval or there are too few repetitions for one.
"""

from __future__ import annotations

import math
from dataclasses import replace

from mrclab.experiments.judging.verdict import Check
from mrclab.experiments.report.statistics import Interval

TOO_FEW = "no interval: fewer than three repetitions have a value"


def at_least(asked: str, found: Interval | None, limit: float, source: str, unit: str = "") -> Check:
    """Ask that a value is not below a limit."""
    holds = None if found is None else _decided(found.low >= limit, found.high < limit)
    return Check(asked, f"{words(found, unit)} (at least {_number(limit)}{unit})", holds, source)


def at_most(asked: str, found: Interval | None, limit: float, source: str, unit: str = "") -> Check:
    """Ask that a value is not above a limit."""
    holds = None if found is None else _decided(found.high <= limit, found.low > limit)
    return Check(asked, f"{words(found, unit)} (at most {_number(limit)}{unit})", holds, source)


def within(asked: str, found: Interval | None, wanted: float, margin: float, source: str) -> Check:
    """Ask that a value is within ``margin`` of one that is wanted."""
    low, high = wanted - margin, wanted + margin
    holds = None
    if found is not None:
        holds = _decided(low <= found.low and found.high <= high, found.high < low or found.low > high)
    return Check(asked, f"{words(found)} ({_number(wanted)} +- {_number(margin)})", holds, source)


def includes(asked: str, found: Interval | None, wanted: float, source: str, width: float) -> Check:
    """Ask that the interval includes a value that theory gives, and that it is no wider than ``width``."""
    holds = None
    if found is not None:
        inside = found.low <= wanted <= found.high
        holds = _decided(inside and found.high - found.low <= width, not inside)
    return Check(asked, f"{words(found)} (theory: {_number(wanted)})", holds, source)


def leads(asked: str, ratio: Interval | None, source: str, times: float = 1.0) -> Check:
    """Ask that a ratio is above 1, which excludes "equal", and at least ``times``."""
    if ratio is None:
        return Check(asked, TOO_FEW, None, source)
    holds = _decided(ratio.low > 1 and ratio.low >= times, ratio.high < max(1.0, times))
    wanted = f"at least {_number(times)} times" if times > 1 else "more than 1"
    return Check(asked, f"{words(ratio)} ({wanted})", holds, source)


def present(asked: str, count: int, source: str) -> Check:
    """Ask that something happened at all; the claim is not shown where it did not."""
    return Check(asked, f"{count:,}", True if count else None, source)


def like_control(asked: str, ratio: Interval | None, limit: float, source: str) -> Check:
    """Ask that a value is at most ``limit`` times its control's, whose own must not be the higher by as much:
    else something disturbed the control, and nothing is shown."""
    check = at_most(asked, ratio, limit, source)
    if ratio is not None and ratio.high < 1 / limit:
        return replace(check, holds=None, found=f"{check.found}; the control was disturbed")
    return check


def none_of(asked: str, count: int | None, source: str) -> Check:
    """Ask that something never happened; None: it cannot be said."""
    return Check(
        asked,
        "not recorded" if count is None else f"{count:,}",
        count if count is None else not count,
        source,
    )


def unless_control_fails(check: Check, control: Check) -> Check:
    """Return the check; not shown where it fails and the control, which no fault disturbed, fails as well."""
    if check.holds is not False or control.holds is True:
        return check
    return replace(check, holds=None, found=f"{check.found}; undisturbed: {control.found}")


def words(found: Interval | None, unit: str = "") -> str:
    """Return an interval in words: ``0.75 [0.74, 0.76], n 3``."""
    if found is None:
        return TOO_FEW
    low, value, high = (_number(v) for v in (found.low, found.value, found.high))
    return f"{value}{unit} [{low}, {high}], n {found.n:,}"


def _decided(yes: bool, no: bool) -> bool | None:
    return True if yes else False if no else None


def _number(value: float) -> str:
    """Return four digits, since a criterion may differ from a finding in the fourth."""
    return "infinite" if math.isinf(value) else f"{value:,.0f}" if abs(value) >= 1e3 else f"{value:.4g}"
