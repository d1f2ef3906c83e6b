"""Going before other processes for a moment: to be on time, or to keep the CPU between two stamps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

LIKE_AGENTS = 1
"""The real-time priority that the hosts' agents have (`hosts.schedule`)."""
ABOVE_AGENTS = 2


@contextmanager
def before_others(priority: int = LIKE_AGENTS) -> Iterator[None]:
    """Has the calling thread run before ordinary processes within the ``with``, where that is allowed.

    For one that has little to do, but at its time, or (``ABOVE_AGENTS``) that must not lose the CPU for a few
    microseconds: whoever else wants it waits. Threads and processes that it starts do not inherit it.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
