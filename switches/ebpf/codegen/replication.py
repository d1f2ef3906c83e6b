"""Replication: make the copies of a frame for a multicast group or a clone session, and run egress for each.

The metadata and headers are saved after ingress and restored before every copy. bpf_clone_redirect sends a
copy and keeps the frame for the next copy. The kernel's verifier checks every round of a loop. So the program
makes only a few copies in a loop, and then calls itself for more copies. The kernel allows 33 calls a frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from mrclab.linux.bpf_types import MapSpec, MapType
from mrclab.switches.ebpf.codegen.analysis.scratch_layout import Layout
from mrclab.switches.ebpf.codegen.backend.asm import I32, Asm, Helper, MapPool, Value, const
from mrclab.switches.ebpf.codegen.codegen_context import STANDARD, CodegenContext
from mrclab.switches.ebpf.codegen.deparser import valid_bytes
from mrclab.switches.ebpf.codegen.expressions import Machine
from mrclab.switches.ebpf.codegen.recirculation import cut_to, session_of
from mrclab.switches.ebpf.plan import COPIES, COPY, HEADER, SESSION, replication_map
from mrclab.switches.v1model.expressions import NOWHERE, FieldRef

_AT_A_TIME = COPIES // 32
_REPLICATION = 5  # PKT_INSTANCE_TYPE_REPLICATION
# Offsets of variables, relative to `Layout.copying`. CALLED is 1 if the program called itself, else 0. NEXT
# is the number of the next copy, and PAYLOAD the offset of the payload in the frame.
_CALLED, _GROUP, _NEXT, _PAYLOAD, _LENGTH, _RECEIVED, _CLASS = range(0, 28, 4)


@dataclass(frozen=True)
class ReplicationMaps:
    """Indexes of two maps: the map of groups and sessions, and the map that holds the program itself."""

    groups: int
    program: int

    def __init__(self, pool: MapPool) -> None:
        object.__setattr__(self, "groups", pool.add(replication_map("copies")))
        object.__setattr__(self, "program", pool.add(MapSpec("itself", MapType.PROG_ARRAY, 4, 4, 1)))


def resume(asm: Asm, layout: Layout, scratch: Value) -> Any:
    """Write a branch: if the program has called itself, make copies; otherwise process a new frame.

    Return the basic block that makes copies.
    """
    cell = asm.at(scratch, layout.copying + _CALLED)
    called = asm.load(cell, 32, 4)
    asm.store(const(32, 0), cell, 4)
    copy, fresh = asm.block("copies"), asm.block("fresh")
    asm.b.cbranch(asm.b.icmp_unsigned("==", called, const(32, 0)), fresh, copy)
    asm.enter(fresh)
    return copy


def begin_multicast(gen: CodegenContext) -> None:
    """Write code after ingress: start the copies of a multicast frame. Later code is for unicast frames."""
    if not gen.has_standard("mcast_grp"):  # the program has no multicast, only clones
        return
    asm, b = gen.asm, gen.asm.b
    group = asm.fit(gen.machine.read(FieldRef(STANDARD, "mcast_grp"), NOWHERE), 32)
    many, one = asm.block("multicast"), asm.block("unicast")
    b.cbranch(b.icmp_unsigned("==", group, const(32, 0)), one, many)
    asm.enter(many)
    gen.set_standard("instance_type", const(32, _REPLICATION))
    if gen.truncates:  # as in BMv2, truncate() in ingress does not apply to copies
        asm.store(const(32, 0), asm.at(gen.machine.scratch, gen.layout.cut), 4)
    _start(gen, group, gen.frame_length, const(32, 0))
    asm.enter(one)


def begin_clone_session(gen: CodegenContext, maps: ReplicationMaps) -> None:
    """Truncate a clone to its session's length and start its copies. This code ends the block."""
    asm, b, memory = gen.asm, gen.asm.b, gen.machine.scratch
    group = b.or_(session_of(gen), const(32, SESSION))
    asm.store(group, gen.index_key, 4)
    session = asm.helper(Helper.MAP_LOOKUP_ELEM, asm.map_ptr(maps.groups), gen.index_key)
    found, cut, go = (asm.block(f"session.{n}") for n in ("found", "cut", "go"))
    b.cbranch(asm.is_null(session), gen.drop, found)
    asm.enter(found)
    most, number = (asm.load(asm.at(session, at), 32, 4) for at in (4, 8))
    gen.set_standard("priority", number)
    start = b.block
    b.cbranch(b.icmp_unsigned("==", most, const(32, 0)), go, cut)
    asm.enter(cut)
    # Keep all valid headers. If the session's length allows more bytes, keep also a part of the payload.
    headers = valid_bytes(gen)
    keep = b.select(b.icmp_unsigned("<", most, headers), headers, most)
    parsed = asm.load(asm.at(memory, gen.layout.parsed), 32, 4)
    shorter = cut_to(asm, gen.ctx, gen.frame_length, b.add(b.sub(keep, headers), parsed), gen.drop)
    total = asm.at(memory, gen.layout.length)
    before = asm.load(total, 32, 4)
    asm.store(b.select(b.icmp_unsigned("<", keep, before), keep, before), total, 4)
    end = b.block
    b.branch(go)
    asm.enter(go)
    length = b.phi(I32)
    length.add_incoming(gen.frame_length, start)
    length.add_incoming(shorter, end)
    _start(gen, group, length, number)


def _start(gen: CodegenContext, group: Value, length: Value, number: Value) -> None:
    asm, memory = gen.asm, gen.machine.scratch
    asm.copy(memory, gen.layout.saved, memory, 0, gen.layout.key)
    payload = asm.load(asm.at(memory, gen.layout.parsed), 32, 4)
    for cell, value in (
        (_GROUP, group),
        (_NEXT, const(32, 0)),
        (_PAYLOAD, payload),
        (_LENGTH, length),
        (_RECEIVED, gen.length),
        (_CLASS, number),
    ):
        asm.store(value, _cell(gen, cell), 4)
    asm.b.branch(gen.copies_block)


def class_of_copy(gen: CodegenContext) -> Value:
    """Load the class of service of a clone session's copies."""
    return gen.asm.load(_cell(gen, _CLASS), 32, 4)


def _cell(gen: CodegenContext, cell: int) -> Value:
    return gen.asm.at(gen.machine.scratch, gen.layout.copying + cell)


@contextmanager
def each_copy(gen: CodegenContext, maps: ReplicationMaps) -> Iterator[tuple[CodegenContext, Value, Any]]:
    """Write the loop over copies. Yield the context of a copy, its port, and the block for the next copy."""
    asm, b = gen.asm, gen.asm.b
    found, loop, more, make = (asm.block(f"copies.{n}") for n in ("found", "loop", "more", "make"))
    after, call = asm.block("copies.after"), asm.block("copies.call")
    asm.enter(gen.copies_block)
    asm.store(asm.load(_cell(gen, _GROUP), 32, 4), gen.index_key, 4)
    group = asm.helper(Helper.MAP_LOOKUP_ELEM, asm.map_ptr(maps.groups), gen.index_key)
    b.cbranch(asm.is_null(group), gen.drop, found)
    asm.enter(found)
    b.branch(loop)
    asm.enter(loop)
    turn = b.phi(I32)
    turn.add_incoming(const(32, 0), found)
    number, count = asm.load(_cell(gen, _NEXT), 32, 4), asm.load(group, 32, 4)
    b.cbranch(b.icmp_unsigned("<", number, count), more, gen.drop)  # after the last copy, drop the frame
    asm.enter(more)
    b.cbranch(b.icmp_unsigned("<", turn, const(32, _AT_A_TIME)), make, call)
    asm.enter(make)
    asm.store(b.add(number, const(32, 1)), _cell(gen, _NEXT), 4)
    place = b.mul(asm.fit(b.and_(number, const(32, COPIES - 1)), 64), const(64, COPY))
    copy = asm.at(group, b.add(place, const(64, HEADER)))
    port, instance = asm.load(copy, 32, 4), asm.load(asm.at(copy, 4), 32, 4)
    memory = asm.here(gen.machine.scratch)
    asm.copy(memory, 0, memory, gen.layout.saved, gen.layout.key)
    asm.store(asm.load(_cell(gen, _PAYLOAD), 32, 4), asm.at(memory, gen.layout.parsed), 4)
    length, received = (asm.load(_cell(gen, c), 32, 4) for c in (_LENGTH, _RECEIVED))
    machine = Machine(gen.program, gen.layout, asm, memory)
    mine = replace(gen, machine=machine, length=received, frame_length=length, wrong=after)
    mine.set_standard("egress_rid", instance)
    yield mine, port, after
    asm.enter(after)
    turn.add_incoming(b.add(turn, const(32, 1)), after)
    b.branch(loop)
    asm.enter(call)
    asm.store(const(32, 1), _cell(gen, _CALLED), 4)
    asm.helper(Helper.TAIL_CALL, gen.ctx, asm.map_ptr(maps.program), const(64, 0))
    asm.store(const(32, 0), _cell(gen, _CALLED), 4)  # the program gets here only if its call of itself failed
    b.branch(gen.drop)


def store_lengths(copy: CodegenContext, headers: Value) -> Value:
    """Store the frame's payload offset and length after the deparser wrote `headers` bytes of headers.

    Return the length of the frame.
    """
    asm, b = copy.asm, copy.asm.b
    parsed = asm.load(asm.at(copy.machine.scratch, copy.layout.parsed), 32, 4)
    length = b.sub(b.add(copy.frame_length, headers), parsed)
    asm.store(length, _cell(copy, _LENGTH), 4)
    asm.store(headers, _cell(copy, _PAYLOAD), 4)
    return length
