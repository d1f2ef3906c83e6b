"""Standstills: times in which no data frame left or came in, for much longer than usual.

The usual gap is that from burst to burst: gaps as long or longer hold half of the time. A gap is a standstill
if it is five times as long, and a millisecond at least. A machine that stops for so long stops the sender,
the receiver and the switches between them. A sender that waits for an acknowledgement could look the same, so
that standstills during recoveries are distinguished from those at other times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mrclab.experiments.measure.trace import IntArray, Trace

TIMES_USUAL = 5
LEAST_NS = 1_000_000
MOST_SHARE = 0.1
"""Of the trials: if more have a standstill, it is not chance that puts it into their recoveries."""
KEPT = 200
"""Standstills of a repetition that a result holds, the longest."""


@dataclass(frozen=True)
class Standstills:
    """When each began and how long it was, ns: two arrays of shape (n,); and the shortest that counts."""

    t_ns: IntArray
    length_ns: IntArray
    limit_ns: int

    def longest_between_ns(self, begin_ns: int, end_ns: int) -> int:
        """Return the longest that touches the time from ``begin_ns`` to ``end_ns``; 0: there is none."""
        touching = (self.t_ns < end_ns) & (self.t_ns + self.length_ns > begin_ns)
        return int(self.length_ns[touching].max(initial=0))

    def to_dict(self, measure_ns: int) -> dict[str, Any]:
        """Return them as they go into result.json: begin and length in us since the measurement's start."""
        kept = np.sort(np.argsort(-self.length_ns, kind="stable")[:KEPT])
        rows = zip(self.t_ns[kept].tolist(), self.length_ns[kept].tolist(), strict=True)
        return {
            "limit_us": self.limit_ns / 1e3,
            "count": len(self.t_ns),
            "found": [[round((t_ns - measure_ns) / 1e3, 3), length / 1e3] for t_ns, length in rows],
        }

    def words(self) -> str:
        """Return one line for a note; empty if there are none."""
        if not len(self.t_ns):
            return ""
        count = len(self.t_ns)
        many = f"{count} standstill{'s' if count > 1 else ''} of {self.limit_ns / 1e6:.3g} ms or more"
        longest = f"the longest {int(self.length_ns.max()) / 1e6:.3g} ms"
        return f"{many}, in which no data frame left or came in; {longest} (grey in the pictures)"


def chosen_aside(found: Mapping[int, int], trials: int) -> list[int]:
    """Return the trials to set aside, of those with a standstill between the fault and the recovery.

    None if they are more than one, and more than a tenth: then the standstills may be the transport's own.
    """
    return sorted(found) if len(found) <= max(1.0, MOST_SHARE * trials) else []


def standstills_of(traces: Sequence[Trace]) -> Standstills:
    """Return the standstills in which no pair of hosts sent or received data, by their captures."""
    stamps = [stamps for trace in traces for stamps in (trace.sent.t_ns, trace.received.t_ns)]
    frames = np.sort(np.concatenate(stamps)) if stamps else np.zeros(0, np.int64)
    gaps = np.diff(frames)
    if not len(gaps):
        return Standstills(gaps, gaps, LEAST_NS)
    limit_ns = max(LEAST_NS, TIMES_USUAL * _usual_ns(gaps))
    long = gaps >= limit_ns
    return Standstills(frames[:-1][long], gaps[long], limit_ns)


def _usual_ns(gaps: IntArray) -> int:
    """Return the gap so long that longer ones hold half of the time."""
    ordered = np.sort(gaps)
    held = np.cumsum(ordered)
    return int(ordered[int(np.searchsorted(held, held[-1] / 2))])
