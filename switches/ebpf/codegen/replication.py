"""Copies of a frame for a multicast group or a clone session, each with egress and deparser of its own.

What ingress left is saved and put back before every copy. The frame itself is not: what matters is only where
its payload begins now, for the deparser writes all headers anew. A copy is sent by bpf_clone_redirect, so the
frame is there for the next. The verifier follows a loop turn by turn; so the program makes a few copies, then
calls itself for the next few. A kernel allows 33 such calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from linux.bpf_types import MapSpec, MapType
from switches.ebpf.codegen.analysis.scratch_layout import Layout
from switches.ebpf.codegen.backend.asm import I32, Asm, Helper, MapPool, Value, const
from switches.ebpf.codegen.codegen_context import STANDARD, Unit
from switches.ebpf.codegen.deparser import valid_bytes
from switches.ebpf.codegen.expressions import Machine
from switches.ebpf.codegen.recirculation import cut_to, session_of
from switches.ebpf.plan.replication import COPIES, COPY, HEADER, SESSION, replication_map
from switches.v1model.expressions import NOWHERE, FieldRef

_AT_A_TIME = COPIES // 32
_REPLICATION = 5  # PKT_INSTANCE_TYPE_REPLICATION
# Where from `Layout.copying` is whether the program called itself, the group, the number of the next copy,
# where the payload is now, how long the frame is now, how long it was when it came in, and its class.
_AGAIN, _GROUP, _NEXT, _PAYLOAD, _LENGTH, _RECEIVED, _CLASS = range(0, 28, 4)


@dataclass(frozen=True)
class CopyMaps:
    """The groups, and the program itself."""

    groups: int
    program: int

    def __init__(self, pool: MapPool) -> None:
        object.__setattr__(self, "groups", pool.add(replication_map("copies")))
        object.__setattr__(self, "program", pool.add(MapSpec("itself", MapType.PROG_ARRAY, 4, 4, 1)))


def resume(asm: Asm, layout: Layout, scratch: Value) -> Any:
    """Go on with copies if the program has called itself, else with a frame that came in.

    Returns the block that makes copies.
    """
    again = asm.at(scratch, layout.copying + _AGAIN)
    called = asm.load(again, 32, 4)
    asm.store(const(32, 0), again, 4)
    copy, fresh = asm.block("copies"), asm.block("fresh")
    asm.b.cbranch(asm.b.icmp_unsigned("==", called, const(32, 0)), fresh, copy)
    asm.enter(fresh)
    return copy


def begin_copies(u: Unit) -> None:
    """Behind ingress: begin with the copies of a frame for a group. The builder goes on with other frames."""
    if not u.has_standard("mcast_grp"):  # a program that only clones
        return
    asm, b = u.asm, u.asm.b
    group = asm.fit(u.machine.read(FieldRef(STANDARD, "mcast_grp"), NOWHERE), 32)
    many, one = asm.block("multicast"), asm.block("unicast")
    b.cbranch(b.icmp_unsigned("==", group, const(32, 0)), one, many)
    asm.enter(many)
    u.set_standard("instance_type", const(32, _REPLICATION))
    if u.truncates:  # as in BMv2 truncate() in ingress is for the frame, not for copies of it
        asm.store(const(32, 0), asm.at(u.machine.scratch, u.layout.cut), 4)
    _start(u, group, u.frame_length, const(32, 0))
    asm.enter(one)


def begin_session(u: Unit, maps: CopyMaps) -> None:
    """Begin with the copies of a clone: what its session leaves of it. Ends the current block."""
    asm, b, memory = u.asm, u.asm.b, u.machine.scratch
    group = b.or_(session_of(u), const(32, SESSION))
    asm.store(group, u.index_key, 4)
    session = asm.helper(Helper.MAP_LOOKUP_ELEM, asm.map_ptr(maps.groups), u.index_key)
    found, cut, go = (asm.block(f"session.{n}") for n in ("found", "cut", "go"))
    b.cbranch(asm.is_null(session), u.drop, found)
    asm.enter(found)
    most, number = (asm.load(asm.at(session, at), 32, 4) for at in (4, 8))
    u.set_standard("priority", number)
    start = b.block
    b.cbranch(b.icmp_unsigned("==", most, const(32, 0)), go, cut)
    asm.enter(cut)
    # What is kept are the headers that are valid now, and of the payload what fits behind them.
    headers = valid_bytes(u)
    keep = b.select(b.icmp_unsigned("<", most, headers), headers, most)
    parsed = asm.load(asm.at(memory, u.layout.parsed), 32, 4)
    shorter = cut_to(asm, u.ctx, u.frame_length, b.add(b.sub(keep, headers), parsed), u.drop)
    total = asm.at(memory, u.layout.length)
    before = asm.load(total, 32, 4)
    asm.store(b.select(b.icmp_unsigned("<", keep, before), keep, before), total, 4)
    end = b.block
    b.branch(go)
    asm.enter(go)
    length = b.phi(I32)
    length.add_incoming(u.frame_length, start)
    length.add_incoming(shorter, end)
    _start(u, group, length, number)


def _start(u: Unit, group: Value, length: Value, number: Value) -> None:
    asm, memory = u.asm, u.machine.scratch
    asm.copy(memory, u.layout.saved, memory, 0, u.layout.key)
    payload = asm.load(asm.at(memory, u.layout.parsed), 32, 4)
    for cell, value in (
        (_GROUP, group),
        (_NEXT, const(32, 0)),
        (_PAYLOAD, payload),
        (_LENGTH, length),
        (_RECEIVED, u.length),
        (_CLASS, number),
    ):
        asm.store(value, _cell(u, cell), 4)
    asm.b.branch(u.copy)


def class_of_copy(u: Unit) -> Value:
    """The class that a clone session gives its copies."""
    return u.asm.load(_cell(u, _CLASS), 32, 4)


def _cell(u: Unit, cell: int) -> Value:
    return u.asm.at(u.machine.scratch, u.layout.copying + cell)


@contextmanager
def each_copy(u: Unit, maps: CopyMaps) -> Iterator[tuple[Unit, Value, Any]]:
    """Write what is done for each copy: yields the unit of a copy, its port, and the block to go on with."""
    asm, b = u.asm, u.asm.b
    found, loop, more, make = (asm.block(f"copies.{n}") for n in ("found", "loop", "more", "make"))
    after, call = asm.block("copies.after"), asm.block("copies.call")
    asm.enter(u.copy)
    asm.store(asm.load(_cell(u, _GROUP), 32, 4), u.index_key, 4)
    group = asm.helper(Helper.MAP_LOOKUP_ELEM, asm.map_ptr(maps.groups), u.index_key)
    b.cbranch(asm.is_null(group), u.drop, found)
    asm.enter(found)
    b.branch(loop)
    asm.enter(loop)
    turn = b.phi(I32)
    turn.add_incoming(const(32, 0), found)
    number, count = asm.load(_cell(u, _NEXT), 32, 4), asm.load(group, 32, 4)
    b.cbranch(b.icmp_unsigned("<", number, count), more, u.drop)  # the frame itself goes nowhere
    asm.enter(more)
    b.cbranch(b.icmp_unsigned("<", turn, const(32, _AT_A_TIME)), make, call)
    asm.enter(make)
    asm.store(b.add(number, const(32, 1)), _cell(u, _NEXT), 4)
    place = b.mul(asm.fit(b.and_(number, const(32, COPIES - 1)), 64), const(64, COPY))
    copy = asm.at(group, b.add(place, const(64, HEADER)))
    port, instance = asm.load(copy, 32, 4), asm.load(asm.at(copy, 4), 32, 4)
    memory = asm.here(u.machine.scratch)
    asm.copy(memory, 0, memory, u.layout.saved, u.layout.key)
    asm.store(asm.load(_cell(u, _PAYLOAD), 32, 4), asm.at(memory, u.layout.parsed), 4)
    length, received = (asm.load(_cell(u, c), 32, 4) for c in (_LENGTH, _RECEIVED))
    machine = Machine(u.program, u.layout, asm, memory)
    mine = replace(u, machine=machine, length=received, frame_length=length, wrong=after)
    mine.set_standard("egress_rid", instance)
    yield mine, port, after
    asm.enter(after)
    turn.add_incoming(b.add(turn, const(32, 1)), after)
    b.branch(loop)
    asm.enter(call)
    asm.store(const(32, 1), _cell(u, _AGAIN), 4)
    asm.helper(Helper.TAIL_CALL, u.ctx, asm.map_ptr(maps.program), const(64, 0))
    asm.store(const(32, 0), _cell(u, _AGAIN), 4)  # the call has failed
    b.branch(u.drop)


def emitted(copy: Unit, headers: Value) -> Value:
    """Note where the payload is and how long the frame is, now that it has headers of so many bytes.

    Returns its length.
    """
    asm, b = copy.asm, copy.asm.b
    parsed = asm.load(asm.at(copy.machine.scratch, copy.layout.parsed), 32, 4)
    length = b.sub(b.add(copy.frame_length, headers), parsed)
    asm.store(length, _cell(copy, _LENGTH), 4)
    asm.store(headers, _cell(copy, _PAYLOAD), 4)
    return length
