"""Keeping the CPU for the few microseconds between two stamps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

# Above the hosts' agents, which run in real time, too.
PRIORITY = 2


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Runs what is inside with real-time priority, so that no other process gets the CPU in between.

    For microseconds only: whoever else wants this CPU waits. Without the privilege nothing changes.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
