"""The state machine of an entropy value, as a table [SPEC Fig 5, P1 §2.1].

The states are `mrclab.hosts.rdma.counters.EvState`; `TRANSITIONS` is the whole machine.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from mrclab.hosts.rdma.counters import EvState


class EvInput(IntEnum):
    """What can happen to an EV."""

    ACKED = 0
    ECN = 1
    TRIMMED = 2
    TRIMMED_LASTHOP = 3
    TURN_SKIPPED = 4
    LOST = 5
    ALWAYS_SKIP = 6
    PROBES_PASSED = 7
    PROBES_PASSED_MARKED = 8
    DENY = 9
    ALLOW = 10


def _table() -> dict[tuple[EvState, EvInput], EvState]:
    s, i = EvState, EvInput
    rows: dict[EvState, dict[EvInput, EvState]] = {
        s.UNKNOWN: {
            i.ACKED: s.GOOD,
            i.ECN: s.SKIP,
            i.TRIMMED: s.SKIP,
            i.LOST: s.ASSUMED_BAD,
            i.ALWAYS_SKIP: s.ASSUMED_BAD,
            i.PROBES_PASSED: s.GOOD,
            i.PROBES_PASSED_MARKED: s.SKIP,
            i.DENY: s.DENIED,
        },
        s.GOOD: {
            i.ECN: s.SKIP,
            i.TRIMMED: s.SKIP,
            i.LOST: s.ASSUMED_BAD,
            i.ALWAYS_SKIP: s.ASSUMED_BAD,
            i.PROBES_PASSED_MARKED: s.SKIP,
            i.DENY: s.DENIED,
        },
        s.SKIP: {
            i.TURN_SKIPPED: s.GOOD,
            i.LOST: s.ASSUMED_BAD,
            i.ALWAYS_SKIP: s.ASSUMED_BAD,
            i.DENY: s.DENIED,
        },
        s.ASSUMED_BAD: {i.PROBES_PASSED: s.GOOD, i.PROBES_PASSED_MARKED: s.SKIP, i.DENY: s.DENIED},
        s.DENIED: {i.ALLOW: s.UNKNOWN},
    }
    return {(state, event): rows[state].get(event, state) for state in s for event in i}


TRANSITIONS: Final[dict[tuple[EvState, EvInput], EvState]] = _table()
"""The state machine, total: every event has an outcome in every state."""
