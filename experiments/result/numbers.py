"""Write numbers as text, in the same way in the terminal, on pages and in pictures."""

from __future__ import annotations

from collections.abc import Sequence

UNITS = {"us": "\N{MICRO SIGN}s", "ms": "ms", "mbps": "Mbit/s", "gbps": "Gbit/s", "share": ""}
LONG_US = 100_000
"""If a metric has a value of at least this time, us, its values are shown in milliseconds."""


def figure(value: float | None) -> str:
    """Return a number as text, such as ``0.124``, ``41.3``, ``1,234``; a dash for None."""
    if value is None:
        return "-"
    if value == 0 or abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def us(value: float | None) -> str:
    """Return a time in microseconds as text, such as ``3.42`` or ``1,234``; a dash for None."""
    if value is None:
        return "-"
    if value < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def interval(bounds: Sequence[float] | None, scale: float = 1.0) -> str:
    """Return both ends of an interval, divided by ``scale``; a dash for None."""
    return f"{figure(bounds[0] / scale)}-{figure(bounds[1] / scale)}" if bounds else "-"


def scaled(metric: str, values: Sequence[float | None]) -> tuple[float, str]:
    """Return a divisor for a metric's values, and the metric's name with the unit of the divided values.

    Microseconds become milliseconds if a value is 100 ms or more.
    """
    base, at, size = metric.partition("@")
    if base.endswith("_us") and max((v for v in values if v is not None), default=0) >= LONG_US:
        return 1e3, f"{base.removesuffix('_us')}_ms{at}{size}"
    return 1.0, metric


def unit_of(metric: str) -> str:
    """Return the unit that the end of a metric's name stands for. It is empty if the metric has no unit."""
    return UNITS.get(metric.partition("@")[0].rpartition("_")[2], "")


def words_of(metric: str) -> str:
    """Return a metric's name in words, for example ``recovered`` or ``busbw, 1MiB``."""
    name, _, size = metric.partition("@")
    base, _, unit = name.rpartition("_")
    words = (base if unit in UNITS and base else name).replace("_", " ")
    return f"{words}, {size}" if size else words


def amount(value: float | None, metric: str) -> str:
    """Return a value with its unit. A time is in us, ms or s, so that its number is short."""
    unit = unit_of(metric)
    if value is None or unit != UNITS["us"]:
        return f"{figure(value)} {unit}".strip()
    for name, scale in (("s", 1e6), ("ms", 1e3)):
        if value >= 10 * scale or (name == "s" and value >= scale):
            return f"{figure(value / scale)} {name}"
    return f"{us(value)} {unit}"
