"""Sleeps that are part of the scenario, without a condition to wait for."""

from __future__ import annotations

import time


def sleep(duration_ns: int) -> None:
    """Sleep for a part of the scenario, in which its traffic goes on."""
    time.sleep(max(0, duration_ns) / 1e9)


def sleep_until(time_ns: int) -> None:
    """Sleep until a moment of CLOCK_MONOTONIC."""
    sleep(time_ns - time.monotonic_ns())
