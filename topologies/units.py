"""Read rates, times and sizes with units, such as "200 Mbit/s", "150 us" and "64 KiB"."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from mrclab.linux.errors import InputError

RATE_PATTERN = r"^\s*(\d+(?:\.\d+)?)\s*([kKmMgG]?)(?:bit|bps|b)(?:/s|ps)?\s*$"
TIME_PATTERN = r"^\s*(\d+(?:\.\d+)?)\s*(ns|us|ms|s|min|h)\s*$"
SIZE_PATTERN = r"^\s*(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|kB|MB|GB)\s*$"

_BPS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_RATE = re.compile(RATE_PATTERN, re.IGNORECASE)
_TIME = re.compile(TIME_PATTERN, re.IGNORECASE)
_SIZE = re.compile(SIZE_PATTERN)
MAX_TEXT = 40
"""The largest number of characters of a quantity. Converting a longer number could overflow."""


def rate_bps(value: Any) -> int:
    """Return a rate such as ``200 Mbit/s`` in bits per second. Raise ValueError if it is no rate."""
    match = _match(_RATE, value)
    if match is None:
        raise ValueError(f"must be a rate such as '200 Mbit/s', not {shown(value)}")
    return round(float(match[1]) * _BPS[match[2].lower()])


def time_ns(value: Any) -> int:
    """Return a time such as ``150 us``, or 0, in nanoseconds. Raise ValueError if it is no time."""
    if value == 0 and not isinstance(value, bool):
        return 0
    match = _match(_TIME, value)
    if match is None:
        number = str(value).strip()
        example = f"{number} s" if number.isdigit() and len(number) < 6 else "150 us"
        raise ValueError(f"must be a time such as '{example}', not {shown(value)}")
    return round(float(match[1]) * _NS[match[2].lower()])


def size_bytes(value: Any) -> int:
    """Return a size in bytes: ``64 KiB`` (powers of 1024), ``2 MB`` (powers of 1000), or a whole number.

    Raise ValueError if it is no size.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _match(_SIZE, value)
    if match is None:
        raise ValueError(f"must be a size such as '64 KiB' or 65536, not {shown(value)}")
    return round(float(match[1]) * _BYTES[match[2]])


def share(text: str) -> float:
    """Return a share such as ``0.1`` or ``10%`` as a number. Raise ValueError if it is no number."""
    number = text.strip()
    return float(number[:-1]) / 100 if number.endswith("%") else float(number)


def option_value(parse: Callable[[Any], int], text: str, option: str) -> int:
    """Return a command-line option's value. If ``parse`` fails, raise InputError with the option's name."""
    try:
        return parse(text)
    except ValueError as error:
        raise InputError(f"it {error}", where=option) from None


def shown(value: Any) -> str:
    """Return a value as a short text of one line, for an error message."""
    text = repr(value)
    return text if len(text) <= 2 * MAX_TEXT else f"{text[: 2 * MAX_TEXT]}..."


def _match(pattern: re.Pattern[str], value: Any) -> re.Match[str] | None:
    return pattern.match(value) if isinstance(value, str) and len(value) <= MAX_TEXT else None
