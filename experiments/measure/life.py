"""From the faults of one run to a job's goodput over its life: pure arithmetic that `scale` shares."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1

DAYS = 90
CHECKPOINT_HOURS, RESTART_HOURS = 0.5, 1 / 6
"""Between two checkpoints, and from a crash until the job runs again: those of `mrclab scale`'s parts."""
MTTF_HOURS = (3.1, 1 / 6)
"""Mean times between two faults. Llama 3 (arXiv:2407.21783, table 5): 419 interruptions in 54 days. The other
is one in ten minutes."""


@dataclass(frozen=True, slots=True)
class Toll:
    """The cost of one fault for a job, the mean over the faults of a run."""

    stall_s: float
    """The time by which steps were longer, without steps that a watchdog would have ended."""
    crashes: float
    """How often a watchdog would have ended the job, or its transport did."""


def useful_share(crashes_per_hour: float, checkpoint_hours: float, pause_hours: float) -> float:
    """Return the share of a life in which work is done that lasts, for crashes at random.

    A stretch of length tau between checkpoints takes (e^(r tau) - 1) e^(r R) / r on average, with crashes at
    the rate r and a pause R after each, in which a crash starts the pause again. [Daly, 2006, without the
    cost of checkpoints]
    """
    rate, tau = crashes_per_hour, checkpoint_hours
    if rate == 0:
        return 1.0
    if tau == 0:
        return exp(-rate * pause_hours)
    return rate * tau / (expm1(rate * tau) * exp(rate * pause_hours))


def goodput(toll: Toll, mttf_hours: float) -> float:
    """Return the share of a long life in useful steps, if such a fault comes every ``mttf_hours`` on average.

    It is the share of the time without stalls, times the share that crashes leave.
    """
    stalled = min(toll.stall_s / 3600 / mttf_hours, 1.0)
    return (1 - stalled) * useful_share(toll.crashes / mttf_hours, CHECKPOINT_HOURS, RESTART_HOURS)
