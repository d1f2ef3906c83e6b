"""How a NIC's process gets at a CPU: agents and ``mrclab perf`` alike, or their figures would differ."""

from __future__ import annotations

import logging
import os

LOGGER = logging.getLogger(__name__)


def take_cpu(cpu: int | None, *, realtime: bool = True) -> None:
    """Has this process run on one CPU (None: on any) and, with ``realtime``, before everybody else.

    A NIC does not queue for a CPU. The kernel keeps a part of each second for everybody else, and children
    start as ordinary processes. Where that is not allowed a warning is all that happens.
    """
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    if not realtime:
        return
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:
        LOGGER.warning("not allowed to run with real-time priority: expect longer stalls")


def stand_back() -> None:
    """Has this process run on any CPU, and only when nobody else wants it."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, 0, 19)
