"""The plan of a compiled program: its maps, the layout of entries in them, and constants.

Everything here is a plain value that the compiler and the runtime share and that can be pickled, so that one
compilation serves any number of switches. There is a part each for tables and actions, the cells of queues
(the server fills them in, the program updates them), multicast groups and clone sessions, parser value
sets, and the place in the P4 program that an instruction comes from (for errors of the kernel's verifier).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mrclab.linux.bpf_types import NO_PREALLOC, MapSpec, MapType
from mrclab.linux.errors import UnsupportedError
from mrclab.switches.v1model.declarations import Action
from mrclab.switches.v1model.expressions import Source
from mrclab.switches.v1model.program import Program


@dataclass(frozen=True)
class SourceMap:
    """Pairs of an instruction and the place that begins there, in order; empty if LLVM gave none."""

    places: tuple[tuple[int, str], ...] = ()

    def place_at(self, instruction: int) -> str | None:
        """Return the place that an instruction comes from, None if it is not known."""
        return next((name for first, name in reversed(self.places) if first <= instruction), None)


def split_place(place: str) -> tuple[str, str]:
    """Split a place into its name and its position in the P4 source, empty if unknown."""
    what, _, where = place.partition(" (")
    return what, where.removesuffix(")")


# A per-CPU allocation of the kernel is at most 32 KiB, so counters come in chunks of this many cells.
COUNTER_CHUNK = 1024
WIDEST = 512  # bits of a field, key or parameter that is used, and of every intermediate result
COUNTER_BYTES = 16  # packets, then bytes, 64 bits each
VALUE_HEADER = 8  # action number (32 bits, 1 is the first), counter cell (32 bits)
DROP_PORT = 511
PORTS = 512
# HTB, the qdisc of a port, reads skb->priority as a class id. This is 1:10, the class for frames whose
# standard_metadata.priority is 0; priority 7 has 1:17.
QDISC_CLASS = 0x0001_0010
SCAN_LIMIT = 256  # entries of a table that is scanned; larger tables are searched by masks
TUPLES = 128  # different masks of such a table; the verifier follows each of them
TUPLE_HEADER = (
    8  # before a tuple's mask its priority and number, before a masked key its number, 32 bits each
)


@dataclass(frozen=True)
class KeySlot:
    """An element of a table's key: big-endian, right-aligned in `size` bytes at `offset`."""

    name: str
    match: str
    width: int
    offset: int
    size: int


@dataclass(frozen=True)
class ParamSlot:
    """A parameter in an entry's value: little-endian at `offset`."""

    name: str
    width: int
    offset: int
    size: int


@dataclass(frozen=True)
class ActionLayout:
    """An action of a table: its number in the value, and its parameters."""

    name: str
    id: int
    number: int
    params: tuple[ParamSlot, ...]


# Offsets in a meter cell; a lock comes first. Rates are per second, `rest` is a fraction of a token in
# billionths.
METER_CONFIGURED, METER_PEAK, METER_COMMITTED, METER_LAST, METER_SIZE = 4, 8, 40, 72, 80
METER_RATE, METER_BURST, METER_TOKENS, METER_REST = 0, 8, 16, 24  # of each of the two buckets
METER_COLOURS = 4  # counters of each cell: green, yellow, red, and a spare one that makes it a power of two
METER_RATE_LIMIT = 16 * 10**9  # a higher rate limits nothing, and would overflow


@dataclass(frozen=True)
class MeterLayout:
    """A meter array: an array of cells, and counters of what got which colour, four for each cell."""

    name: str
    map: int
    size: int
    packets: bool
    counter_map: int

    @property
    def counters(self) -> int:
        """Cells of the map of counters."""
        return METER_COLOURS * self.size


@dataclass(frozen=True)
class TableLayout:
    """How a table's entries lie in its maps.

    `kind` is `none` (nothing to match), `hash`, `lpm`, `scan` or `tuples` (see `tuple_space`). A scan table
    is one value of `capacity` cells, replaced as a whole: used (8 bytes), then value, then for each key slot
    its low end or value, then for each key slot its mask or high end.
    """

    name: str
    kind: str
    map: int | None
    default_map: int | None
    counter_map: int | None
    key: tuple[KeySlot, ...]
    key_size: int
    value_size: int
    capacity: int
    actions: tuple[ActionLayout, ...]
    profile: str | None = None
    meter: MeterLayout | None = None
    tuple_map: int | None = None  # of a table that is searched by masks, see `tuple_space`
    default_counter_map: int | None = None  # one cell, for frames that no entry matched
    default_meter: MeterLayout | None = None
    hit_map: int | None = None  # when each entry was hit last, CLOCK_MONOTONIC in nanoseconds, by its cell

    @property
    def cell_size(self) -> int:
        """Bytes of one cell of a scan table."""
        return 8 + self.value_size + 2 * round8(self.key_size)


# What an entry of a table with an action profile refers to: a number in place of an action's, and behind the
# header the place of the member or group (32 bits).
TO_MEMBER, TO_GROUP = 1, 2
REFERENCE_SIZE = VALUE_HEADER + 8
# Members of a group if the program names no limit, or a larger one.
GROUP_LIMIT = 1024


@dataclass(frozen=True)
class ProfileLayout:
    """An action profile: an array of members, whose values are those of a plain table's entries.

    A selector also has a hash of groups: how many places (32 bits), then that many members (32 bits each). A
    member of weight n has n places.
    """

    name: str
    member_map: int
    group_map: int | None
    size: int
    group_capacity: int
    value_size: int
    actions: tuple[ActionLayout, ...]

    @property
    def group_value_size(self) -> int:
        """Bytes of a group."""
        return round8(4 + 4 * self.group_capacity)


@dataclass(frozen=True)
class CounterLayout:
    """An indirect counter array: its map and its number of cells."""

    name: str
    map: int
    size: int


@dataclass(frozen=True)
class RegisterLayout:
    """A register array: one map value that holds all cells, of `cell_size` bytes in host order."""

    name: str
    map: int
    size: int
    width: int
    cell_size: int


@dataclass(frozen=True)
class ValueSetLayout:
    """A parser value set: one value of `size` cells, replaced as a whole (see `value_sets`)."""

    name: str
    map: int
    key: tuple[KeySlot, ...]
    key_size: int
    size: int


RING_SIZE = 1 << 18  # bytes; records are lost while it is full
DIGEST_HEADER = 8  # the digest's number in the JSON (32 bits), then each field in 8 or 16 bytes


@dataclass(frozen=True)
class DigestLayout:
    """A digest: its name, and where its fields are in a record: offset and size in bytes."""

    name: str
    fields: tuple[tuple[int, int], ...]
    size: int


@dataclass(frozen=True)
class Plan:
    """The run-time side of a compiled program."""

    maps: tuple[MapSpec, ...]
    tables: Mapping[str, TableLayout]
    counters: Mapping[str, CounterLayout]
    registers: Mapping[str, RegisterLayout]
    profiles: Mapping[str, ProfileLayout]
    port_map: int  # port number -> ifindex, 0 without a port
    ifindex_map: int  # ifindex -> port number
    meters: Mapping[str, MeterLayout] = field(default_factory=dict)
    multicast_map: int | None = None  # see `replication`; None if the program makes no such copies
    clone_map: int | None = None
    digests: Mapping[int, DigestLayout] = field(default_factory=dict)
    ring_map: int | None = None  # of programs with digests: where records go
    queue_map: int | None = None  # port -> its queue, see `queues`
    value_sets: Mapping[str, ValueSetLayout] = field(default_factory=dict)
    identity_map: int | None = None  # mark and program number of frames that enter again, see `recirculation`
    self_map: int | None = None  # holds the program itself, which calls itself to continue


def round8(n: int) -> int:
    """Return the next multiple of 8."""
    return (n + 7) & ~7


def tuple_size(key_size: int) -> int:
    """Return the bytes of one tuple in the list of tuples."""
    return TUPLE_HEADER + round8(key_size)


def counter_map(name: str, cells: int) -> MapSpec:
    """Return the map of a counter array: values of one chunk, as many as hold `cells`."""
    chunk = counter_chunk(cells)
    return MapSpec(name, MapType.PERCPU_ARRAY, 4, chunk * COUNTER_BYTES, -(-cells // chunk))


def counter_chunk(cells: int) -> int:
    """Return the cells in one value of a counter map, a power of two."""
    return min(COUNTER_CHUNK, 1 << max(cells - 1, 0).bit_length())


# The standard metadata of a queue; egress_global_timestamp is when a frame leaves its queue.
QUEUE_FIELDS = ("enq_timestamp", "enq_qdepth", "deq_timedelta", "deq_qdepth")

SLOTS = 1024  # frames with a computed time of departure; the depth is at most one less
SLOTS_LOG = SLOTS.bit_length() - 1
# Offsets in a cell; a lock comes first. The cost of a byte is in 2^-20 ns.
CELL_COUNT, CELL_BYTE_COST, CELL_BURST, CELL_LIMIT = 4, 8, 16, 24
CELL_LEAST, CELL_OVERHEAD, CELL_WHOLE = 28, 32, 36
CELL_ROOM, CELL_HORIZON, CELL_LEAVE = 40, 48, 56
CELL_SIZE = CELL_LEAVE + 8 * SLOTS
COST_FRACTION_BITS = 20
FOREVER_NS = 1 << 62


@dataclass(frozen=True)
class Shape:
    """The parameters of a queue.

    Frames leave at `rate` bytes a second, each counted with `overhead` bytes more and as `least` bytes at
    least; what the rate gives in `burst_ns` may leave at once. With `whole` there must be tokens for all of a
    frame, else for some of it. A frame is lost if `limit` frames wait, or if the wait would exceed `room_ns`.
    """

    rate: int
    burst_ns: int
    whole: bool = True
    limit: int = SLOTS - 1
    room_ns: int = FOREVER_NS
    overhead: int = 0
    least: int = 0

    def encode(self) -> bytes:
        """Return the cell of an empty queue."""
        out = bytearray(CELL_SIZE)
        struct.pack_into(
            "=QQIIII",
            out,
            CELL_BYTE_COST,
            (10**9 << COST_FRACTION_BITS) // max(self.rate, 1),
            self.burst_ns,
            min(self.limit, SLOTS - 1),
            self.least,
            self.overhead,
            self.whole,
        )
        struct.pack_into("=Q", out, CELL_ROOM, self.room_ns)
        return bytes(out)


COPIES = 256  # of one group or session
HEADER, COPY = 16, 8
VALUE_SIZE = HEADER + COPIES * COPY
GROUPS = SESSIONS = 1 << 15  # numbers from 1 up to, but not with, this one, as in BMv2
SESSION = 1 << 31
CLASSES = 8  # of service


def replication_map(name: str) -> MapSpec:
    """Return the map of groups and sessions."""
    return MapSpec(name, MapType.HASH, 4, VALUE_SIZE, GROUPS + SESSIONS, NO_PREALLOC)


USED_BYTES = 8  # bytes before the fields of a member: 1 if there is one
PLACES_PER_FIELD = 3  # of each field: its mask, then the lowest and the highest value under it


@dataclass(frozen=True, eq=False)  # compared by identity
class Compiled:
    """A program, its BPF instructions with marks in place of map descriptors, and its plan."""

    program: Program
    plan: Plan
    code: bytes
    source_map: SourceMap


def layout_action(action: Action, number: int, where: Source) -> ActionLayout:
    """Lay out the parameters of an action in an entry's value. Raises UnsupportedError."""
    params, offset = [], VALUE_HEADER
    for p in action.params:
        if p.width > WIDEST:
            what = f"parameter {p.name} of {p.width} bits in action {action.name}"
            raise UnsupportedError(what, str(where))
        size = round8((p.width + 7) // 8)
        params.append(ParamSlot(p.name, p.width, offset, size))
        offset += size
    return ActionLayout(action.name, action.id, number, tuple(params))


def value_size_of(actions: Sequence[ActionLayout]) -> int:
    """Return the bytes that hold any of these actions."""
    return max([VALUE_HEADER] + [p.offset + p.size for a in actions for p in a.params])
