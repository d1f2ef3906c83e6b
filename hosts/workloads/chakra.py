"""Execution traces of MLCommons Chakra: schema 0.0.4 and 1.0.0, as Protocol Buffers (.et) or JSON.

A trace has a file for each rank: `NAME.0.et`, `NAME.1.et` and so on. Both versions have the same messages
(github.com/mlcommons/chakra, schema/protobuf/et_def.proto): a `GlobalMetadata`, then a `Node` for each
operation. The attributes of a node describe its operation: `comm_type`, `comm_size` (bytes that each rank
contributes), `comm_src`, `comm_dst`, `comm_tag`, `pg_name` (the process group), `is_cpu_op`.

This module implements only the parts of Protocol Buffers that traces need. A message has fields. A file has
messages, each with its length before it. Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, cast

from mrclab.hosts.workloads.graph import CPU, GPU, Op
from mrclab.linux.errors import DAMAGE, InputError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MAX_SHIFT: Final = 63
_MASK64: Final = (1 << 64) - 1

Field = tuple[int, int, int | bytes]
"""A field's number, wire type and value. The value is bytes for type BYTES, otherwise an unsigned integer."""


class WireError(ValueError):
    """The bytes are not a valid message. The exception's text names the reason."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an integer and the offset after it. Raise WireError if the integer is incomplete or too long."""
    value = shift = 0
    while True:
        if at >= len(data):
            raise WireError("it ends inside a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK64, at
        shift += 7
        if shift > _MAX_SHIFT:
            raise WireError("a number has more than 64 bits")


def fields(data: bytes) -> Iterator[Field]:
    """Yield the fields of a message. Raise WireError if the bytes are not a valid message."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if not number:
            raise WireError("a field has the number 0")
        if kind == VARINT:
            value, at = varint(data, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            length, at = varint(data, at)
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        else:
            raise WireError(f"a field has the unknown wire type {kind}")
        if length > len(data) - at:
            raise WireError("it ends inside a field")
        piece = data[at : at + length]
        at += length
        yield number, kind, piece if kind == BYTES else int.from_bytes(piece, "little")


def packed(kind: int, value: int | bytes) -> Iterator[int]:
    """Yield the integers of a repeated field, packed or single. Raise WireError for invalid bytes."""
    if isinstance(value, int):
        yield value
        return
    if kind != BYTES:
        raise WireError("a list of numbers has the wrong wire type")
    at = 0
    while at < len(value):
        number, at = varint(value, at)
        yield number


def messages(data: bytes) -> Iterator[bytes]:
    """Yield the messages of a file, each with its length before it. Raise WireError for invalid bytes."""
    at = 0
    while at < len(data):
        length, at = varint(data, at)
        if length > len(data) - at:
            raise WireError("it ends inside a message")
        yield data[at : at + length]
        at += length


def signed(value: int) -> int:
    """Return the value of an int32 or int64 field. Both types are sent as 64 bits."""
    return value - (1 << 64) if value >> 63 else value


def zigzag(value: int) -> int:
    """Return the value of a sint32 or sint64 field from its zigzag code."""
    return (value >> 1) ^ -(value & 1)


def double(value: int) -> float:
    """Return the value of a double field from its 64 bits."""
    return float(struct.unpack("<d", struct.pack("<Q", value))[0])


def single(value: int) -> float:
    """Return the value of a float field from its 32 bits. Raise WireError if there are more bits."""
    if value >> 32:
        raise WireError("a float has more than 32 bits")
    return float(struct.unpack("<f", struct.pack("<I", value))[0])


def put_varint(value: int) -> bytes:
    """Return the bytes of an integer. A negative integer is sent as 64 bits."""
    value &= _MASK64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def put_int(number: int, value: int) -> bytes:
    """Return the bytes of a field that holds an integer."""
    return put_varint(number << 3 | VARINT) + put_varint(value)


def put_bytes(number: int, value: bytes | str) -> bytes:
    """Return the bytes of a field that holds bytes, text or a message."""
    raw = value.encode() if isinstance(value, str) else value
    return put_varint(number << 3 | BYTES) + put_varint(len(raw)) + raw


def put_message(raw: bytes) -> bytes:
    """Return a message for a file: its length, then its bytes."""
    return put_varint(len(raw)) + raw


METADATA_NODE, COMPUTE_NODE, SEND_NODE, RECEIVE_NODE, COLLECTIVE_NODE = 1, 4, 5, 6, 7
NO_TIME: Final = (0, METADATA_NODE, 2, 3)
"""Kinds of nodes that are played without a duration: invalid, metadata, and loads and stores of memory."""
COLLECTIVE_TYPES: Final = (
    "all-reduce",
    "reduce",
    "all-gather",
    "gather",
    "scatter",
    "broadcast",
    "all-to-all",
    "reduce-scatter",
    "reduce-scatter",  # REDUCE_SCATTER_BLOCK: a reduce-scatter with equal blocks
    "barrier",
)
"""The collective operations, in the order of their numbers in `CollectiveCommType`."""
MAX_NODES: Final = 1_000_000
MAX_DEPENDENCIES: Final = 5_000_000
"""Largest number of dependencies in one rank's file."""
MAX_NAME: Final = 200
VERSION: Final = "1.0.0"
_US_NS: Final = 1000
_GROUPS_NODE: Final = "process_group:init"

Attributes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Node:
    """A node with the values from the file."""

    number: int
    name: str
    kind: int
    after: tuple[int, ...]
    duration_us: int
    values: str
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class RankTrace:
    """The contents of one rank's file."""

    version: str
    nodes: tuple[Node, ...]
    groups: Mapping[str, tuple[int, ...]]
    """The process groups that the trace names. An empty tuple means all ranks."""


def read_rank(data: bytes, where: str) -> RankTrace:
    """Return the trace of a rank from its file's bytes. Raise InputError if they are not a trace."""
    try:
        version, listed = _from_json(data) if data.lstrip()[:1] == b"{" else _from_messages(data)
    except WireError as error:
        raise InputError(f"no Chakra trace: {error}", where=where) from None
    except DAMAGE as error:
        raise InputError(f"no Chakra trace: {type(error).__name__} {error}"[:200], where=where) from None
    if not listed:
        raise InputError("a Chakra trace without nodes", where=where)
    groups: dict[str, tuple[int, ...]] = {}
    for node in listed:
        if _GROUPS_NODE in node.name and node.values:
            groups |= _groups(node.values, where)
    return RankTrace(version, tuple(listed), groups)


def _from_messages(data: bytes) -> tuple[str, list[Node]]:
    found = messages(data)
    first = next(found, b"")
    version = str(_attributes(first, 2).get("schema", "")) or _text(first, 1)
    nodes: list[Node] = []
    left = MAX_DEPENDENCIES
    for raw in found:
        if len(nodes) >= MAX_NODES:
            raise WireError(f"more than {MAX_NODES} nodes")
        nodes.append(_node(raw, left))
        left -= len(nodes[-1].after)
    return version[:40], nodes


def _node(raw: bytes, most: int) -> Node:
    number = kind = duration_us = 0
    name = values = ""
    after: list[int] = []
    for field, wire, value in fields(raw):
        if field in (1, 3, 7):
            if not isinstance(value, int) or wire != VARINT:
                raise WireError(f"field {field} of a node is no number")
            if field == 1 and value >> 63 == 0:
                number = value
            elif field == 3:
                kind = value
            else:
                duration_us = value
        elif field == 2 and isinstance(value, bytes):
            name = value.decode(errors="replace")[:MAX_NAME]
        elif field == 5:  # data_deps; ctrl_deps (field 4) are ignored, as in Chakra's feeder
            after += islice(packed(wire, value), most + 1 - min(most, len(after)))
            if len(after) > most:
                raise WireError(f"more than {MAX_DEPENDENCIES} dependencies")
        elif field == 8 and isinstance(value, bytes):
            values = _text(value, 1)
    return Node(number, name, kind, tuple(dict.fromkeys(after)), duration_us, values, _attributes(raw, 10))


def _text(raw: bytes, number: int) -> str:
    for field, _, value in fields(raw):
        if field == number and isinstance(value, bytes):
            return value.decode(errors="replace")
    return ""


_UNSIGNED, _SIGNED, _ZIGZAG = (11, 13, 19, 21), (7, 9), (15, 17)


def _attributes(raw: bytes, number: int) -> Attributes:
    found: Attributes = {}
    for field, _, value in fields(raw):
        if field == number and isinstance(value, bytes):
            name, content = _attribute(value)
            if content is not None:
                found[name] = content
    return found


def _attribute(raw: bytes) -> tuple[str, Any]:
    name, content = "", cast("Any", None)
    for field, wire, value in fields(raw):
        if field == 1 and isinstance(value, bytes):
            name = value.decode(errors="replace")[:MAX_NAME]
        elif isinstance(value, int):
            if field in _UNSIGNED:
                content = value
            elif field in _SIGNED:
                content = signed(value)
            elif field in _ZIGZAG:
                content = zigzag(value)
            elif field in (23, 25):
                bits = 32 if field == 23 else 64
                content = value - (value >> bits - 1 << bits)
            elif field == 27:
                content = bool(value)
            elif field in (3, 5):
                content = double(value) if field == 3 else single(value)
        elif field == 29:
            content = value.decode(errors="replace")
        elif field == 28:
            content = [
                bool(item) for n, kind, piece in fields(value) if n == 1 for item in packed(kind, piece)
            ]
        del wire
    return name, content


def _from_json(data: bytes) -> tuple[str, list[Node]]:
    """Return version and nodes of a trace in JSON, as in Chakra's feeder: `{"workload_graph": [...]}`."""
    document = json.loads(data)
    listed = document.get("workload_graph")
    if listed is None and "nodes" in document:
        raise WireError(
            "it is PyTorch's own execution trace: convert it with chakra_converter (docs/workloads.md)"
        )
    if not isinstance(listed, list) or len(listed) > MAX_NODES:
        raise WireError(f"'workload_graph' is no list of at most {MAX_NODES} nodes")
    known = {int(entry["Id"]) for entry in listed}
    nodes = []
    for entry in listed:
        nodes.append(
            Node(
                number=int(entry["Id"]),
                name=str(entry.get("Name", ""))[:MAX_NAME],
                kind=int(entry["NodeType"]),
                # Leave out dependencies on nodes that are not in the file. Chakra's feeder does the same.
                after=tuple(dict.fromkeys(n for n in map(int, entry.get("data_deps", ())) if n in known)),
                duration_us=int(entry.get("runtime", 0)),
                values="",
                attributes={key: value for key, value in entry.items() if key.startswith(("comm_", "pg_"))}
                | {"is_cpu_op": bool(entry.get("is_cpu_op", False))},
            )
        )
    return str(document.get("schema", "JSON"))[:40], nodes


def _groups(text: str, where: str) -> dict[str, tuple[int, ...]]:
    """Return the process groups of PyTorch's metadata node, which is JSON text inside a JSON list."""
    try:
        start, end = text.index("[", 1) if text.startswith(("['", '["')) else 0, text.rindex("]") + 1
        inner = text[start : text.rindex("]", 0, end - 1) + 1] if start else text
        listed = json.loads(inner.replace('\\"', '"'))
        return {str(entry["pg_name"]): tuple(int(rank) for rank in entry["ranks"]) for entry in listed}
    except DAMAGE:
        raise InputError("its node of process groups cannot be read", where=where) from None


def ops_of(trace: RankTrace, size: int, groups: Mapping[str, tuple[int, ...]], where: str) -> Iterator[Op]:
    """Yield a rank's operations. ``groups`` has the ranks of process groups and overrides the trace's groups.

    Raise InputError for a node of the trace that cannot be replayed.
    """
    known = {**trace.groups, **groups}
    for node in trace.nodes:
        try:
            yield _op(node, size, known)
        except (WireError, *DAMAGE) as error:
            raise InputError(f"node {node.number} ({node.name[:60]}): {error}", where=where) from None


def _op(node: Node, size: int, groups: Mapping[str, tuple[int, ...]]) -> Op:
    given = node.attributes
    on_cpu = bool(given.get("is_cpu_op", False))
    op = partial(Op, node.number, name=node.name, after=node.after)
    if node.kind in NO_TIME:
        return op(kind="compute")
    if node.kind == COMPUTE_NODE or (on_cpu and node.kind in (SEND_NODE, RECEIVE_NODE, COLLECTIVE_NODE)):
        # A communication node on the CPU is only the function call: replay it as a computation. A node on the
        # GPU sends the data.
        duration_ns = node.duration_us * _US_NS
        return op(kind="compute", duration_ns=duration_ns, stream=CPU if on_cpu else GPU)
    if node.kind in (SEND_NODE, RECEIVE_NODE):
        sends = node.kind == SEND_NODE
        return op(
            kind="send" if sends else "receive",
            size_bytes=int(given["comm_size"]),
            peer=int(given["comm_dst" if sends else "comm_src"]),
            tag=int(given.get("comm_tag", 0)),
        )
    if node.kind != COLLECTIVE_NODE:
        raise WireError(f"its type is {node.kind}: 1 to 7")
    number = given.get("comm_type")
    if number is None:
        raise WireError("it has no comm_type: a call on the CPU needs is_cpu_op")
    if not isinstance(number, int) or not 0 <= number < len(COLLECTIVE_TYPES):
        raise WireError(f"comm_type is {number}: 0 to {len(COLLECTIVE_TYPES) - 1}")
    name = str(given.get("pg_name", given.get("comm_group", "")))
    if name and name not in groups:
        raise WireError(f"process group '{name[:40]}' is unknown: name its ranks in groups, a JSON file")
    return op(
        kind="collective",
        size_bytes=int(given.get("comm_size", 0)),
        collective=COLLECTIVE_TYPES[number],
        group=groups.get(name) or tuple(range(size)),
    )


_TYPES: Final = {
    "compute": COMPUTE_NODE,
    "send": SEND_NODE,
    "receive": RECEIVE_NODE,
    "collective": COLLECTIVE_NODE,
}


def write_rank(ops: tuple[Op, ...], groups: Mapping[tuple[int, ...], str], version: str = VERSION) -> bytes:
    """Return the bytes of a rank's file. ``groups`` has the name of each process group."""
    out = [put_message(put_bytes(1, version))]
    return b"".join(out + [put_message(_written(op, groups)) for op in ops])


def _written(op: Op, groups: Mapping[tuple[int, ...], str]) -> bytes:
    kinds = {
        "compute": COMPUTE_NODE,
        "send": SEND_NODE,
        "receive": RECEIVE_NODE,
        "collective": COLLECTIVE_NODE,
    }
    parts = [put_int(1, op.number), put_bytes(2, op.name), put_int(3, kinds[op.kind])]
    if op.after:
        parts.append(put_bytes(5, b"".join(put_int(0, n)[1:] for n in op.after)))
    if op.kind == "compute":
        parts.append(put_int(7, -(-op.duration_ns // _US_NS)))
    given: dict[str, int | str] = {}
    if op.kind == "collective":
        given = {"comm_type": COLLECTIVE_TYPES.index(op.collective), "pg_name": groups[op.group]}
    elif op.kind != "compute":
        given = {"comm_dst" if op.kind == "send" else "comm_src": op.peer, "comm_tag": op.tag}
    if op.kind != "compute":
        given["comm_size"] = op.size_bytes
    parts.append(put_bytes(10, put_bytes(1, "is_cpu_op") + put_int(27, int(op.stream == CPU))))
    for name, value in given.items():
        content = put_int(9, value) if isinstance(value, int) else put_bytes(29, value)
        parts.append(put_bytes(10, put_bytes(1, name) + content))
    return b"".join(parts)
