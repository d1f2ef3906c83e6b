"""The state of the switch, and the fields of the frame at hand."""

from __future__ import annotations

import random as random_module
from collections.abc import Callable, Mapping, Sequence

from mrclab.switches.p4_model.entries import (
    CloneSession,
    Counts,
    Key,
    Meter,
    Profile,
    Rule,
)
from mrclab.switches.p4_model.frame import (
    STANDARD,
    FrameState,
)
from mrclab.switches.v1model.expressions import (
    FieldRef,
)
from mrclab.switches.v1model.program import Program


class Machine:
    """The state of a switch that lasts from frame to frame, and the frame that it works on."""

    def __init__(
        self,
        program: Program,
        rules: Mapping[str, Sequence[Rule]] | None = None,
        defaults: Mapping[str, tuple[str, tuple[int, ...]]] | None = None,
        random: Callable[[int, int], int] = random_module.randint,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        self.program = program
        self.rules = dict(rules or {})
        self.defaults = dict(defaults or {})
        self.counters: dict[tuple[str, int], Counts] = {}
        self.direct: dict[tuple[str, Rule], Counts] = {}
        self.registers: dict[tuple[str, int], int] = {}
        self.learned: list[tuple[str, tuple[int, ...]]] = []  # digests
        self._digest = 0
        self.meters: dict[tuple[str, int], Meter] = {}
        self.direct_meters: dict[tuple[str, Rule], Meter] = {}
        self.groups: dict[int, list[tuple[int, int]]] = {}  # multicast: port and instance of each copy
        self.value_sets: dict[str, Sequence[Key]] = {}
        self.sessions: dict[int, CloneSession] = {}
        self.profiles: dict[str, Profile] = {name: Profile() for name in program.profiles}
        self._random = random
        self._clock = clock
        self._s = FrameState(b"")
        self._port = 0
        self._todo: list[FrameState] = []

    def _standard(self, name: str) -> int:
        return self._s.fields.get(FieldRef(STANDARD, name), 0)

    def _set_standard(self, name: str, value: int) -> None:
        self._store(FieldRef(STANDARD, name), value)

    def _load(self, ref: FieldRef) -> int:
        if ref.field == "$valid$":
            return int(self._s.valid.get(ref.header, False))
        raw, f = self._s.fields.get(ref, 0), self.program.field(ref)
        return raw - (1 << f.width) if f.signed and raw >> (f.width - 1) else raw

    def _store(self, ref: FieldRef, value: int) -> None:
        self._s.fields[ref] = value % (1 << self.program.field(ref).width)

    def _emit(self, header: str) -> bytes:
        kind, value = self.program.headers[header].type, 0
        for f in kind.fields:
            value = value << f.width | self._s.fields.get(FieldRef(header, f.name), 0)
        fixed = value.to_bytes(kind.bits // 8, "big")
        if kind.varbit is None:
            return fixed
        at = kind.varbit.offset // 8
        return fixed[:at] + self._s.varbits.get(FieldRef(header, kind.varbit.name), b"") + fixed[at:]

    def _size(self, header: str) -> int:
        """Bytes that a header takes in the frame."""
        kind = self.program.headers[header].type
        varbit = b"" if kind.varbit is None else self._s.varbits.get(FieldRef(header, kind.varbit.name), b"")
        return kind.bits // 8 + len(varbit)

    def _set_valid(self, header: str) -> None:
        self._s.valid[header] = True
        for rival in self.program.exclusive_with(header):
            self._s.valid[rival] = False
