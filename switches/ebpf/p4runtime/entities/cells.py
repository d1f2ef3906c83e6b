"""Counter cells as clients see them: those of the kernel only count up, so their start is kept here."""

from __future__ import annotations

from finsy.proto import p4r

from mrclab.switches.ebpf.plan.layouts import METER_COLOURS, MeterLayout
from mrclab.switches.ebpf.runtime.datapath import Datapath
from mrclab.switches.ebpf.runtime.transaction import Transaction

Counts = tuple[int, int]  # packets, bytes
_COLOURS = ("green", "yellow", "red")


class CounterCells:
    """Reads and sets cells of counter maps."""

    def __init__(self, datapath: Datapath) -> None:
        self._datapath = datapath
        self._base: dict[tuple[int, int], Counts] = {}

    def set(self, index: int, cells: int, cell: int, counts: Counts, tx: Transaction) -> None:
        """Let a cell of counter map `index`, of `cells` cells, continue from given counts."""
        packets, octets = self._datapath.cell(index, cells, cell)
        key, before = (index, cell), self._base.get((index, cell))
        self._base[key] = (packets - counts[0], octets - counts[1])

        def undo() -> None:
            if before is None:
                self._base.pop(key, None)
            else:
                self._base[key] = before

        tx.on_undo(undo)

    def set_colours(self, meter: MeterLayout, cell: int, data: p4r.MeterCounterData, tx: Transaction) -> None:
        """Let the counts of each colour of a meter's cell continue from given counts."""
        for colour, name in enumerate(_COLOURS):
            counts = getattr(data, name)
            place = METER_COLOURS * cell + colour
            self.set(meter.counter_map, meter.counters, place, (counts.packet_count, counts.byte_count), tx)

    def read_colours(self, meter: MeterLayout, cell: int) -> p4r.MeterCounterData:
        """Return the counts of a meter's cell for each colour."""
        first = METER_COLOURS * cell
        counts = [self.read(meter.counter_map, meter.counters, first + i) for i in range(len(_COLOURS))]
        return p4r.MeterCounterData(green=counts[0], yellow=counts[1], red=counts[2])

    def read(self, index: int, cells: int, cell: int) -> p4r.CounterData:
        """Return the counts of a cell."""
        return self._shown(index, cell, self._datapath.cell(index, cells, cell))

    def read_all(self, index: int, cells: int) -> list[p4r.CounterData]:
        """Return what all cells have counted."""
        return [self._shown(index, at, raw) for at, raw in enumerate(self._datapath.cells(index, cells))]

    def _shown(self, index: int, cell: int, raw: Counts) -> p4r.CounterData:
        packets, octets = self._base.get((index, cell), (0, 0))
        return p4r.CounterData(packet_count=raw[0] - packets, byte_count=raw[1] - octets)
