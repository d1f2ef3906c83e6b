"""Compute a job's goodput over its life from the cost of one fault. `mrclab.scale` calls this code."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1

DAYS = 90
CHECKPOINT_HOURS, RESTART_HOURS = 0.5, 1 / 6
"""The time between two checkpoints, and the time to restart after a crash: the defaults of `mrclab scale`."""
MTTF_HOURS = (3.1, 1 / 6)
"""Mean times between two faults. The first is from the training of Llama 3: 419 interruptions in 54 days
(arXiv:2407.21783, table 5). The second is ten minutes."""


@dataclass(frozen=True, slots=True)
class Toll:
    """The cost of one fault for a job, as a mean over the faults of a run."""

    stall_s: float
    """The time by which a fault made steps longer.

    Steps in which a collective timeout would have ended the job do not count.
    """
    crashes: float
    """How often the job's transport failed, or a collective timeout would have ended the job."""


def useful_share(crashes_per_hour: float, checkpoint_hours: float, pause_hours: float) -> float:
    """Return the share of a job's life in which the job does work that no random crash loses.

    Crashes have the rate r, and a pause R follows each crash. The work of a period tau between two
    checkpoints then takes (e^(r tau) - 1) e^(r R) / r on average. A crash in a pause starts the pause again.
    [Daly, 2006, without costs of checkpoints]
    """
    rate, tau = crashes_per_hour, checkpoint_hours
    if rate == 0:
        return 1.0
    if tau == 0:
        return exp(-rate * pause_hours)
    return rate * tau / (expm1(rate * tau) * exp(rate * pause_hours))


def goodput(toll: Toll, mttf_hours: float) -> float:
    """Return the share of useful steps in a long training with a fault every ``mttf_hours`` on average.

    The result is the share of time without stalls, multiplied by the share of work that no crash loses.
    """
    stalled = min(toll.stall_s / 3600 / mttf_hours, 1.0)
    return (1 - stalled) * useful_share(toll.crashes / mttf_hours, CHECKPOINT_HOURS, RESTART_HOURS)
