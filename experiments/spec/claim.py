"""The claim of a scenario: the name of a judge, and the scenario's own expectations.

A judge is a function that returns a verdict on a result. Its name is a shipped figure's name,
``module:judge``, or an entry point of the group ``mrclab.figures``. The module is searched on Python's path
and in the current directory. An example of an expectation is ``recovered_us.p50[mine] < 0.8 * [mrc]``:

    EXPECTATION = QUANTITY RELATION (NUMBER | [NUMBER *] QUANTITY)
    QUANTITY    = METRIC.STATISTIC[TRANSPORT] (on the right side also [TRANSPORT] alone)
    RELATION    = < | <= | > | >=
    STATISTIC   = p50 | p90 | p99 | mean

[TRANSPORT] alone takes METRIC.STATISTIC from the left side.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mrclab.hosts.schemes.registry import find_object
from mrclab.linux.errors import InputError

GROUP = "mrclab.figures"
MODULES: Mapping[str, str] = {
    **dict.fromkeys(("fig09a", "fig09b", "fig09c", "fig09d", "fig19a", "fig19b", "fig19c"), "link_failures"),
    **dict.fromkeys(("fig08", "fig10", "fig11", "drain"), "switch_failures"),
    **dict.fromkeys(("fig05", "fig06", "t1_reboot", "training", "training_124m"), "training_jobs"),
    **dict.fromkeys(("fig04", "fig12", "fig14", "ev_modes", "entropy_values"), "entropy_values"),
    **dict.fromkeys(("link_kill", "headline", "program_kill"), "recovery"),
    **dict.fromkeys(("fig16", "fig17", "all_reduce"), "collectives"),
    **dict.fromkeys(("fig18", "fig21", "fig22", "lossless"), "incast"),
    **dict.fromkeys(("fig20", "queue_pairs", "bandwidth", "latency"), "goodput_and_latency"),
}
"""For each shipped figure: the module of experiments/figures that judges it."""


def require_figure(figure: str) -> None:
    """Raise InputError if a figure has no judge.

    For mrclab's own figures, check only the name, without an import of the judge's module.
    """
    known = sorted(MODULES)
    if figure in known or own_judge(figure) is not None:
        return
    raise InputError(
        f"figure: there is no '{figure}' in experiments/figures ({', '.join(known)}), nor is it module:judge"
    )


def own_judge(figure: str) -> Callable[[Mapping[str, Any]], Any] | None:
    """Return the user's own judge, named by module:judge or an entry point. Return None for any other name.

    Raise InputError if the judge's module cannot be imported, or has no such function.
    """
    try:
        found = find_object(figure, GROUP)
    except ValueError as error:
        raise InputError(f"figure: {error}") from None
    if found is not None and not callable(found):
        raise InputError(f"figure: {figure} is no function: a judge takes a result and returns a Verdict")
    return found  # type: ignore[no-any-return]


STATISTICS: Final = ("p50", "p90", "p99", "mean")
_QUANTITY: Final = r"(?:(?P<{0}metric>[A-Za-z_][A-Za-z0-9_@]*)\s*\.\s*(?P<{0}statistic>[a-z0-9]+)\s*)?"
_NUMBER: Final = r"[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_FORM: Final = re.compile(
    _QUANTITY.format("")
    + r"\[\s*(?P<transport>[^\]\s]+)\s*\]\s*(?P<relation><=|>=|<|>)\s*"
    + rf"(?:(?P<limit>{_NUMBER})|(?:(?P<factor>{_NUMBER})\s*\*\s*)?"
    + _QUANTITY.format("other_")
    + r"\[\s*(?P<other>[^\]\s]+)\s*\])"
)
EXAMPLE: Final = "recovered_us.p50[mine] < 0.8 * [mrc]"


@dataclass(frozen=True, slots=True)
class Quantity:
    """One side of an expectation: a statistic of a metric, for one transport."""

    metric: str
    statistic: str
    transport: str

    def __str__(self) -> str:
        return f"{self.metric}.{self.statistic}[{self.transport}]"


@dataclass(frozen=True, slots=True)
class Expectation:
    """An expectation: ``left`` must be at most (or at least) ``number``, or ``number`` times ``right``."""

    text: str
    left: Quantity
    at_most: bool
    number: float
    right: Quantity | None


def parse_expectation(text: str, transports: Container[str]) -> Expectation:
    """Return the expectation in a line of text. Raise ValueError if the line is wrong."""
    found = _FORM.fullmatch(text.strip())
    if found is None or found["metric"] is None:
        raise ValueError(f"'{text}' cannot be read: it takes a form such as {EXAMPLE}")
    left = Quantity(found["metric"], found["statistic"], found["transport"])
    right = None
    if found["other"] is not None:
        metric = found["other_metric"] or left.metric
        right = Quantity(metric, found["other_statistic"] or left.statistic, found["other"])
    for quantity in (left, right):
        if quantity is None:
            continue
        if quantity.transport not in transports:
            raise ValueError(f"'{text}' names '{quantity.transport}', which is no transport of the scenario")
        if quantity.statistic not in STATISTICS:
            choices = ", ".join(STATISTICS)
            raise ValueError(f"'{text}' names '{quantity.statistic}': a statistic is one of {choices}")
    if right is not None and right.statistic != left.statistic:
        raise ValueError(f"'{text}' compares {left.statistic} with {right.statistic}: take the same of both")
    number = float((found["limit"] or found["factor"] or "1").replace("_", ""))
    return Expectation(text.strip(), left, found["relation"].startswith("<"), number, right)
