"""The state of the model's switch: the control plane's settings (such as entries), and the current frame."""

from __future__ import annotations

import random as random_module
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mrclab.switches.v1model.expressions import FieldRef
from mrclab.switches.v1model.program import Program


@dataclass(frozen=True)
class Exact:
    """Match one value."""

    value: int

    def matches(self, number: int, width: int) -> bool:
        """Return True if a number of `width` bits matches."""
        return number == self.value


@dataclass(frozen=True)
class Prefix:
    """Match the first `length` bits of a value."""

    value: int
    length: int

    def matches(self, number: int, width: int) -> bool:
        """Return True if a number of `width` bits matches."""
        rest = width - self.length
        return number >> rest == self.value >> rest


@dataclass(frozen=True)
class Masked:
    """Match the bits of a value at which the mask has ones."""

    value: int
    mask: int

    def matches(self, number: int, width: int) -> bool:
        """Return True if a number of `width` bits matches."""
        return number & self.mask == self.value & self.mask


@dataclass(frozen=True)
class Between:
    """Match the numbers low..high, including both."""

    low: int
    high: int

    def matches(self, number: int, width: int) -> bool:
        """Return True if a number of `width` bits matches."""
        return self.low <= number <= self.high


Key = tuple[Exact | Prefix | Masked | Between, ...]


@dataclass(frozen=True)
class Rule:
    """A table entry. If several entries match, the longest prefix wins, then the highest priority.

    If the table has an action profile, the entry names a member or a group by id instead of an action.
    """

    key: Key
    action: str = ""
    args: tuple[int, ...] = ()
    priority: int = 0
    member: int | None = None
    group: int | None = None


@dataclass
class Profile:
    """An action profile: members by id, and groups. A group is a list of ids; a hash selects the member."""

    members: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    groups: dict[int, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class CloneSession:
    """A clone session: port and instance of each copy, the bytes to keep (0: all), and class of service."""

    copies: Sequence[tuple[int, int]]
    length: int = 0
    class_of_service: int = 0


@dataclass
class Counts:
    """A counter cell: the counted packets and their bytes."""

    packets: int = 0
    bytes: int = 0


@dataclass
class Meter:
    """A meter cell (RFC 2698, colour-blind): rates per second, bursts, and the tokens in its two buckets."""

    committed: int
    committed_burst: int
    peak: int
    peak_burst: int
    tokens: list[float] = field(default_factory=list)
    last_us: int = 0

    def colour(self, size: int, now_us: int) -> int:
        """Return the colour (0 green, 1 yellow, 2 red) of a frame that needs `size` tokens."""
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
    """An assertion of the P4 program is false; the switch drops the frame."""


class ParserError(Exception):
    """The parser stops because of an error in the frame. `code` is the number of the P4 error."""

    def __init__(self, code: int) -> None:
        self.code = code


@dataclass
class FrameState:
    """A frame in the switch, with its headers, metadata and pending requests."""

    frame: bytes
    fields: dict[FieldRef, int] = field(default_factory=dict)
    valid: dict[str, bool] = field(default_factory=dict)
    offset: int = 0
    received: int = 0  # length of the frame in bytes when it arrived
    length: int = 0  # the value of packet_length in egress
    cut: int | None = None  # the length in bytes that truncate() sets for the output frame
    exited: bool = False
    extracted: dict[str, int] = field(default_factory=dict)  # by stack: how many elements were extracted
    varbits: dict[FieldRef, bytes] = field(default_factory=dict)
    kind: int = 0  # instance type of a clone, resubmitted or recirculated frame; 0 for an arriving frame
    rounds: int = 0  # how often the frame was cloned, resubmitted or recirculated
    session: int = 0  # the clone session of a clone
    kept: dict[FieldRef, int] = field(default_factory=dict)  # metadata that an ingress clone keeps
    clone: tuple[int, int] | None = None  # the requested clone: its session and its field list
    resubmit: int = 0  # number of the field list of a requested resubmission; 0 for none
    recirculate: int = 0


class Machine:
    """The state that a switch keeps between frames, and the current frame."""

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
        self.learned: list[tuple[str, tuple[int, ...]]] = []  # sent digests: name and field values
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
        """Return the size of a header in the frame, in bytes."""
        kind = self.program.headers[header].type
        varbit = b"" if kind.varbit is None else self._s.varbits.get(FieldRef(header, kind.varbit.name), b"")
        return kind.bits // 8 + len(varbit)

    def _set_valid(self, header: str) -> None:
        self._s.valid[header] = True
        for rival in self.program.exclusive_with(header):
            self._s.valid[rival] = False
