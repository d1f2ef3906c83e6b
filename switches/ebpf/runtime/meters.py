"""The configuration of meter arrays, and its encoding."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from mrclab.switches.ebpf.plan import (
    METER_BURST,
    METER_COMMITTED,
    METER_CONFIGURED,
    METER_LAST,
    METER_PEAK,
    METER_RATE,
    METER_RATE_LIMIT,
    METER_SIZE,
    METER_TOKENS,
    MeterLayout,
)
from mrclab.switches.ebpf.runtime.transaction import Transaction


@dataclass(frozen=True)
class Rates:
    """A meter's configuration: committed and peak rate per second, and their bursts, in bytes or packets."""

    committed: int
    committed_burst: int
    peak: int
    peak_burst: int


def encode_meter(rates: Rates | None, now_ns: int) -> bytes:
    """Return a cell with full buckets (`now_ns`: CLOCK_MONOTONIC). Without `rates` every frame is green."""
    out = bytearray(METER_SIZE)
    if rates is not None:
        struct.pack_into("=I", out, METER_CONFIGURED, 1)
        for at, rate, burst in (
            (METER_PEAK, rates.peak, rates.peak_burst),
            (METER_COMMITTED, rates.committed, rates.committed_burst),
        ):
            struct.pack_into("=Q", out, at + METER_RATE, min(rate, METER_RATE_LIMIT))
            struct.pack_into("=Q", out, at + METER_BURST, burst)
            struct.pack_into("=Q", out, at + METER_TOKENS, burst)
        struct.pack_into("=Q", out, METER_LAST, now_ns)
    return bytes(out)


class MeterState:
    """The configuration of a meter array. A change updates this object, and adds map updates to `tx`."""

    def __init__(self, layout: MeterLayout, clock_ns: Callable[[], int]) -> None:
        self.layout = layout
        self.rates: dict[int, Rates] = {}
        self._clock_ns = clock_ns

    def set(self, index: int, rates: Rates | None, tx: Transaction) -> None:
        """Configure a cell. If `rates` is None, all frames are green."""
        before = self.rates.get(index)
        self._put(index, rates)
        tx.on_undo(lambda: self._put(index, before))

        def current() -> bytes:
            return encode_meter(self.rates.get(index), self._clock_ns())

        tx.change(self.layout.map, struct.pack("=I", index), current(), current)

    def _put(self, index: int, rates: Rates | None) -> None:
        if rates is None:
            self.rates.pop(index, None)
        else:
            self.rates[index] = rates
