"""The state of the switch: table entries and what else a control plane writes, and the frame at hand."""

from __future__ import annotations

import random as random_module
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mrclab.switches.v1model.expressions import FieldRef
from mrclab.switches.v1model.program import Program


@dataclass(frozen=True)
class Exact:
    """Matches one value."""

    value: int

    def matches(self, number: int, width: int) -> bool:
        """Whether a number of that width matches."""
        return number == self.value


@dataclass(frozen=True)
class Prefix:
    """Matches the first `length` bits of a value."""

    value: int
    length: int

    def matches(self, number: int, width: int) -> bool:
        """Whether a number of that width matches."""
        rest = width - self.length
        return number >> rest == self.value >> rest


@dataclass(frozen=True)
class Masked:
    """Matches the bits of a value that are set in the mask."""

    value: int
    mask: int

    def matches(self, number: int, width: int) -> bool:
        """Whether a number of that width matches."""
        return number & self.mask == self.value & self.mask


@dataclass(frozen=True)
class Between:
    """Matches low..high, both included."""

    low: int
    high: int

    def matches(self, number: int, width: int) -> bool:
        """Whether a number of that width matches."""
        return self.low <= number <= self.high


Key = tuple[Exact | Prefix | Masked | Between, ...]


@dataclass(frozen=True)
class Rule:
    """A table entry. Of several that match, the longest prefix wins, else the highest priority.

    In a table with an action profile it has a member or a group by id, and no action.
    """

    key: Key
    action: str = ""
    args: tuple[int, ...] = ()
    priority: int = 0
    member: int | None = None
    group: int | None = None


@dataclass
class Profile:
    """An action profile: members by id, and groups of member ids in the order the hash counts them."""

    members: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    groups: dict[int, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class CloneSession:
    """A clone session: port and instance of each copy, its bytes (0: all), and its class of service."""

    copies: Sequence[tuple[int, int]]
    length: int = 0
    class_of_service: int = 0


@dataclass
class Counts:
    """A counter cell."""

    packets: int = 0
    bytes: int = 0


@dataclass
class Meter:
    """A meter cell (RFC 2698, colour-blind): rates per second, bursts, and what its buckets have."""

    committed: int
    committed_burst: int
    peak: int
    peak_burst: int
    tokens: list[float] = field(default_factory=list)
    last_us: int = 0

    def colour(self, size: int, now_us: int) -> int:
        """Green, yellow or red (0, 1, 2) for a frame of so many tokens."""
        bursts, elapsed = (self.peak_burst, self.committed_burst), now_us - self.last_us
        if not self.tokens:
            self.tokens, elapsed = [float(b) for b in bursts], 0
        self.last_us = now_us
        for i, rate in enumerate((self.peak, self.committed)):
            self.tokens[i] = min(self.tokens[i] + rate * elapsed / 1e6, bursts[i])
        if self.tokens[0] < size:
            return 2
        self.tokens[0] -= size
        if self.tokens[1] < size:
            return 1
        self.tokens[1] -= size
        return 0


DROP = 511
# Values of standard_metadata.instance_type.
INGRESS_CLONE, EGRESS_CLONE, RECIRCULATED, REPLICATION, RESUBMITTED = 1, 2, 4, 5, 6
STANDARD = "standard_metadata"


class AssertionFailedError(Exception):
    """An assertion has failed; the frame is lost."""


class ParserError(Exception):
    """A frame that the parser gives up, with the code of P4's error."""

    def __init__(self, code: int) -> None:
        self.code = code


@dataclass
class FrameState:
    """One frame on its way."""

    frame: bytes
    fields: dict[FieldRef, int] = field(default_factory=dict)
    valid: dict[str, bool] = field(default_factory=dict)
    offset: int = 0
    received: int = 0  # bytes when it came in
    length: int = 0  # what packet_length will be in egress
    cut: int | None = None  # what truncate() leaves of the frame
    exited: bool = False
    extracted: dict[str, int] = field(default_factory=dict)  # elements of each stack, up to the next one
    varbits: dict[FieldRef, bytes] = field(default_factory=dict)
    kind: int = 0  # why it starts again: an instance type, 0 for a frame that came in
    rounds: int = 0  # how often it has started again
    session: int = 0  # where a clone goes
    kept: dict[FieldRef, int] = field(default_factory=dict)  # what an ingress clone has from its frame
    clone: tuple[int, int] | None = None  # the session and the field list that were asked for
    resubmit: int = 0  # the field list of the request
    recirculate: int = 0


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
