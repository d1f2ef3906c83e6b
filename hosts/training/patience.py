"""How long to wait for an accelerator that compiles: by the load of the machine, as it is while one waits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

START_TIMEOUT_S = 50.0
"""Until an accelerator is ready, on a machine with nothing else on its CPUs: it compiles in that time."""
LONGEST_START_S = 400.0
LOOK_S = 5.0
"""How often the load is read again."""


def patience_s(load: float) -> float:
    """Return how long to wait for an accelerator (s), by the number of programs that want each CPU.

    It shares the CPUs with them while it compiles.
    """
    return min(START_TIMEOUT_S * max(1.0, load), LONGEST_START_S)


def patience_now_s() -> float:
    """Return `patience_s` for the machine's load of the last minute."""
    return patience_s(os.getloadavg()[0] / (os.cpu_count() or 1))


def until_ready(
    ready: Callable[[float], bool],
    clock: Callable[[], float] = time.monotonic,
    limit_s: Callable[[], float] = patience_now_s,
) -> bool:
    """Wait for an accelerator, and return False if the limit of the present load has passed.

    ``ready`` waits for so many seconds at most and returns whether the accelerator answered.
    """
    begun_s = clock()
    while not ready(LOOK_S):
        if clock() - begun_s >= limit_s():
            return False
    return True
