"""The plan of a compiled program: its BPF maps, the layout of the data in them, and constants.

The compiler makes the plan, and the runtime uses it to fill the maps. A plan consists of plain values that
can be pickled, so that all switches with the same program share one compilation. A plan covers tables,
actions, counters, meters, registers, queues, multicast groups, clone sessions and value sets. If the
kernel's verifier rejects a BPF instruction, the source map gives the instruction's place in the P4 program.
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
    """The places in the P4 program from which the BPF instructions were compiled.

    `places` has (first BPF instruction, text of the place), in the instructions' order. It may be empty.
    """

    places: tuple[tuple[int, str], ...] = ()

    def place_at(self, instruction: int) -> str | None:
        """Return the place in the P4 program from which an instruction was compiled, or None if unknown."""
        return next((name for first, name in reversed(self.places) if first <= instruction), None)


def split_place(place: str) -> tuple[str, str]:
    """Split a place such as "table t (a.p4:7)" into name and position. The position may be empty."""
    what, _, where = place.partition(" (")
    return what, where.removesuffix(")")


# Maximum number of counter cells in one map value: the kernel allocates at most 32 KiB per CPU for a value.
COUNTER_CHUNK = 1024
WIDEST = 512  # maximum width of a field, key, parameter or intermediate result, in bits
COUNTER_BYTES = 16  # size of a counter cell: packets, then bytes, 64 bits each
VALUE_HEADER = 8  # bytes before an entry's parameters: action number (from 1), counter cell, 32 bits each
DROP_PORT = 511
PORTS = 512
# HTB, the qdisc of a port, reads skb->priority as a class id. Class 1:10 is for frames whose
# standard_metadata.priority is 0, and class 1:17 for priority 7.
QDISC_CLASS = 0x0001_0010
SCAN_LIMIT = 256  # a ternary table with more entries uses tuple space search (see `table_state`), not a scan
TUPLES = 128  # maximum number of tuples (different masks) of a table: the verifier checks a look-up for each
TUPLE_HEADER = 8  # bytes before a tuple's mask (priority, number) and before a masked key (number, unused)


@dataclass(frozen=True)
class KeySlot:
    """The place of a key's field: `size` bytes at `offset`, big-endian in `hash` and `lpm` tables."""

    name: str
    match: str
    width: int
    offset: int
    size: int


@dataclass(frozen=True)
class ParamSlot:
    """The place of an action's parameter in an entry's value: `size` bytes at `offset`, little-endian."""

    name: str
    width: int
    offset: int
    size: int


@dataclass(frozen=True)
class ActionLayout:
    """An action of a table: its id in the program, its number in an entry's value, and its parameters."""

    name: str
    id: int
    number: int
    params: tuple[ParamSlot, ...]


# Offsets in a meter cell, which begins with a 4-byte lock. PEAK and COMMITTED are the offsets of two buckets.
METER_CONFIGURED, METER_PEAK, METER_COMMITTED, METER_LAST, METER_SIZE = 4, 8, 40, 72, 80
# Offsets in a bucket. RATE is in tokens per second. REST is a fraction of a token, in billionths.
METER_RATE, METER_BURST, METER_TOKENS, METER_REST = 0, 8, 16, 24
METER_COLOURS = 4  # counters of a meter cell: green, yellow, red, and an unused one
METER_RATE_LIMIT = 16 * 10**9  # largest rate: a higher rate would overflow; real traffic is slower


@dataclass(frozen=True)
class MeterLayout:
    """A meter array: the map of its cells, and the map of its counters (frames and bytes by colour)."""

    name: str
    map: int
    size: int
    packets: bool
    counter_map: int

    @property
    def counters(self) -> int:
        """The number of cells in the map of counters."""
        return METER_COLOURS * self.size


@dataclass(frozen=True)
class TableLayout:
    """The layout of a table's entries in its maps.

    `kind` is `none` (no key), `hash`, `lpm`, `scan` or `tuples` (see `table_state`). All entries of a scan
    table are in one map value with `capacity` cells. A change replaces this value. A cell holds a flag (8
    bytes, 1 if used), the entry's value, and two numbers for each key slot: first all values (or low ends of
    ranges), then all masks (or high ends).
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
    tuple_map: int | None = None  # the list of tuples, if kind is `tuples` (see `table_state`)
    default_counter_map: int | None = None  # one counter, for frames that match no entry
    default_meter: MeterLayout | None = None
    hit_map: int | None = None  # each entry's last hit (CLOCK_MONOTONIC, ns), by index of its counter cell

    @property
    def cell_size(self) -> int:
        """The size of a scan table's cell, in bytes."""
        return 8 + self.value_size + 2 * round8(self.key_size)


# An entry of a table with an action profile holds TO_MEMBER or TO_GROUP in place of an action number. The
# index of the member or group (32 bits) follows the value's header.
TO_MEMBER, TO_GROUP = 1, 2
REFERENCE_SIZE = VALUE_HEADER + 8
# Maximum number of members of a group. A program may set a lower limit.
GROUP_LIMIT = 1024


@dataclass(frozen=True)
class ProfileLayout:
    """An action profile: an array of members. A member's value has the form of a plain table entry's value.

    An action selector also has a hash map of groups. The value of a group is its number of places, followed
    by the member at each place (32 bits each). A member of weight n has n places.
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
        """The size of a group's value, in bytes."""
        return round8(4 + 4 * self.group_capacity)


@dataclass(frozen=True)
class CounterLayout:
    """An indirect counter array: its map and its number of cells (`size`)."""

    name: str
    map: int
    size: int


@dataclass(frozen=True)
class RegisterLayout:
    """A register array. One map value holds all cells, each of `cell_size` bytes in host byte order."""

    name: str
    map: int
    size: int
    width: int
    cell_size: int


@dataclass(frozen=True)
class ValueSetLayout:
    """A parser value set: one map value with `size` cells. A change replaces the value (see `value_sets`)."""

    name: str
    map: int
    key: tuple[KeySlot, ...]
    key_size: int
    size: int


RING_SIZE = 1 << 18  # bytes of the ring buffer for digests. If it is full, further records are lost.
DIGEST_HEADER = 8  # bytes at the start of a record: the digest's number in the JSON. The fields follow.


@dataclass(frozen=True)
class DigestLayout:
    """A digest: its name, and the offset and size in bytes of each field in a record of the ring buffer."""

    name: str
    fields: tuple[tuple[int, int], ...]
    size: int


@dataclass(frozen=True)
class Plan:
    """The maps and layouts of a compiled program, for the runtime. Each `..._map` is an index in `maps`."""

    maps: tuple[MapSpec, ...]
    tables: Mapping[str, TableLayout]
    counters: Mapping[str, CounterLayout]
    registers: Mapping[str, RegisterLayout]
    profiles: Mapping[str, ProfileLayout]
    port_map: int  # port number -> ifindex; 0 if there is no such port
    ifindex_map: int  # ifindex -> port number
    meters: Mapping[str, MeterLayout] = field(default_factory=dict)
    multicast_map: int | None = None  # see `runtime/replication`; None if the program has no multicast
    clone_map: int | None = None
    digests: Mapping[int, DigestLayout] = field(default_factory=dict)
    ring_map: int | None = None  # the ring buffer for digests; None if the program has no digests
    queue_map: int | None = None  # port -> cell of its queue, see `codegen/externs/queues`
    value_sets: Mapping[str, ValueSetLayout] = field(default_factory=dict)
    identity_map: int | None = None  # recognises frames that enter again (see `codegen/recirculation`)
    self_map: int | None = None  # holds the program itself, for tail calls to itself


def round8(n: int) -> int:
    """Round up to a multiple of 8."""
    return (n + 7) & ~7


def tuple_size(key_size: int) -> int:
    """Return the size of a tuple in the list of tuples, in bytes."""
    return TUPLE_HEADER + round8(key_size)


def counter_map(name: str, cells: int) -> MapSpec:
    """Return the map of a counter array with at least `cells` cells. One map value holds a chunk of cells."""
    chunk = counter_chunk(cells)
    return MapSpec(name, MapType.PERCPU_ARRAY, 4, chunk * COUNTER_BYTES, -(-cells // chunk))


def counter_chunk(cells: int) -> int:
    """Return the number of cells in one value of a counter map. This number is a power of two."""
    return min(COUNTER_CHUNK, 1 << max(cells - 1, 0).bit_length())


# Standard metadata about the wait in a queue. egress_global_timestamp is the time of leaving the queue.
QUEUE_FIELDS = ("enq_timestamp", "enq_qdepth", "deq_timedelta", "deq_qdepth")

SLOTS = 1024  # departure times that a queue stores, one per waiting frame; the depth is at most SLOTS - 1
SLOTS_LOG = SLOTS.bit_length() - 1
# Offsets in a queue's cell, which begins with a lock. BYTE_COST is the time to send a byte, in 2^-20 ns.
CELL_COUNT, CELL_BYTE_COST, CELL_BURST, CELL_LIMIT = 4, 8, 16, 24
CELL_LEAST, CELL_OVERHEAD, CELL_WHOLE = 28, 32, 36
CELL_ROOM, CELL_HORIZON, CELL_LEAVE = 40, 48, 56
CELL_SIZE = CELL_LEAVE + 8 * SLOTS
COST_FRACTION_BITS = 20
FOREVER_NS = 1 << 62


@dataclass(frozen=True)
class Shape:
    """The parameters of a queue.

    Frames leave at `rate` bytes per second. A frame counts as its length plus `overhead` bytes, but at least
    as `least` bytes. A burst may be as long as `burst_ns` at this rate. If `whole` is true, a frame waits
    until there are tokens for all its bytes. Otherwise it waits until there is any token. A frame is dropped
    if `limit` frames wait already, or if it would wait longer than `room_ns`.
    """

    rate: int
    burst_ns: int
    whole: bool = True
    limit: int = SLOTS - 1
    room_ns: int = FOREVER_NS
    overhead: int = 0
    least: int = 0

    def encode(self) -> bytes:
        """Return the map value (cell) of an empty queue with these parameters."""
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


COPIES = 256  # maximum number of copies of a multicast group or clone session
HEADER, COPY = 16, 8
VALUE_SIZE = HEADER + COPIES * COPY
GROUPS = SESSIONS = 1 << 15  # groups and sessions have numbers from 1 to 2^15 - 1, as in BMv2
SESSION = 1 << 31
CLASSES = 8  # number of classes of service


def replication_map(name: str) -> MapSpec:
    """Return the map of multicast groups and clone sessions."""
    return MapSpec(name, MapType.HASH, 4, VALUE_SIZE, GROUPS + SESSIONS, NO_PREALLOC)


USED_BYTES = 8  # a value set's cell begins with 8 bytes: 1 if it holds a member, else 0
PLACES_PER_FIELD = 3  # numbers for each field of the key: mask, lowest value, highest value


@dataclass(frozen=True, eq=False)  # two programs are equal only if they are the same object
class Compiled:
    """A compiled program: its BPF instructions and its plan. `bpf.relocate` fills in the map descriptors."""

    program: Program
    plan: Plan
    code: bytes
    source_map: SourceMap


def layout_action(action: Action, number: int, where: Source) -> ActionLayout:
    """Lay out an action's parameters in an entry's value.

    Raise UnsupportedError if a parameter is too wide.
    """
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
    """Return the size in bytes of a value that can hold any of these actions."""
    return max([VALUE_HEADER] + [p.offset + p.size for a in actions for p in a.params])
