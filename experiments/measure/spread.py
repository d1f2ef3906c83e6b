"""How out of order packets came in, and how long each took to be delivered: distributions of a run."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from experiments.measure.trace import NEVER, IntArray, Trace

FloatArray = npt.NDArray[np.float64]


def reorder_extents(trace: Trace) -> IntArray:
    """For each packet's first arrival, how many packets of its flow that were sent later came in before it.

    Counted on PSNs: the highest seen so far less its own, 0 where it came in order (the reordering extent of
    RFC 4737 section 4.2.1, on sequence numbers). Shape (number of packets delivered,).
    """
    received = trace.received
    extents: list[IntArray] = [np.empty(0, np.int64)]
    for flow in np.unique(received.flow):
        psn = received.psn[received.first & (received.flow == flow)]
        if len(psn):
            extents.append(np.maximum.accumulate(psn) - psn)
    return np.concatenate(extents)


def delivery_times_ns(trace: Trace) -> tuple[IntArray, IntArray]:
    """From each packet's first transmission to its first whole arrival, repair included.

    Two arrays of the same shape: when the packet was sent, and how long it took. Packets that never arrived
    are left out.
    """
    sent = trace.sent
    chosen = ~sent.rtx & (sent.first_ns != NEVER)
    return sent.t_ns[chosen], sent.first_ns[chosen] - sent.t_ns[chosen]


def ccdf(values: npt.NDArray[np.int64] | FloatArray) -> tuple[FloatArray, FloatArray]:
    """The share of values that are at least x, for every x that occurs. Two arrays of equal length."""
    x, counts = np.unique(values, return_counts=True)
    at_least = np.cumsum(counts[::-1])[::-1] / max(len(values), 1)
    return x.astype(np.float64), at_least
