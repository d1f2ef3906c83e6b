"""From a P4 program to LLVM IR: the entry code, the two controls, and the way out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from linux.bpf_types import MMAPABLE, NO_PREALLOC, MapSpec, MapType
from linux.errors import UnsupportedError
from switches.ebpf.codegen.actions import ActionWriter
from switches.ebpf.codegen.analysis.scratch_layout import (
    Layout,
    make_layout,
    program_clones,
    program_multicasts,
    program_truncates,
    slot_size,
)
from switches.ebpf.codegen.backend.asm import I32, PTR, Asm, Helper, MapPool, Value, const
from switches.ebpf.codegen.codegen_context import STANDARD, Again, Unit, key_cell
from switches.ebpf.codegen.deparser import DeparserWriter
from switches.ebpf.codegen.expressions import Evaluator, Machine
from switches.ebpf.codegen.externs.checksums import update_checksums, verify_checksums
from switches.ebpf.codegen.externs.digests import layout_digest, send_digest
from switches.ebpf.codegen.externs.meters import layout_meter
from switches.ebpf.codegen.externs.queues import TOLD, join_queue, layout_queues, look_at_queue
from switches.ebpf.codegen.externs.selectors import layout_profile
from switches.ebpf.codegen.externs.value_sets import layout_value_set
from switches.ebpf.codegen.parser import ParserWriter
from switches.ebpf.codegen.recirculation import (
    MARK,
    Why,
    arrive,
    become_clone,
    begin,
    class_of,
    clone_if_asked,
    keep_bytes,
    keep_wish,
    names_map,
    recirculate_if_asked,
    restore_image,
    resubmit_if_asked,
    send_again,
    session_of,
    why_of,
)
from switches.ebpf.codegen.replication import (
    CopyMaps,
    begin_copies,
    begin_session,
    class_of_copy,
    each_copy,
    emitted,
    resume,
)
from switches.ebpf.codegen.tables import TableWriter, layout_table
from switches.ebpf.plan.layouts import (
    DROP_PORT,
    PORTS,
    QDISC_CLASS,
    RING_SIZE,
    TUPLE_HEADER,
    WIDEST,
    CounterLayout,
    Plan,
    RegisterLayout,
    counter_map,
    round8,
)
from switches.v1model.declarations import RegisterArray
from switches.v1model.expressions import FieldRef, Source
from switches.v1model.pipeline import ActionCall, Conditional, Pipeline, Table
from switches.v1model.program import Program

SECTION = "classifier"
SHOT = 2  # TC_ACT_SHOT
# Offsets in struct __sk_buff of linux/bpf.h.
_LEN, _VLAN_PRESENT, _VLAN_TCI, _VLAN_PROTO, _PRIORITY, _IFINDEX = 0, 20, 24, 28, 32, 40
_KINDS = {Table: "table", Conditional: "condition", ActionCall: "call"}
_TAGS = 2  # VLAN tags that are put back into a frame; one with more is dropped


@dataclass(frozen=True)
class Translation:
    """A program as LLVM IR text, and what it needs at run time."""

    ir: str
    plan: Plan
    marks: tuple[str, ...] = ()  # the parts of the program, by their line in the IR's debug information


def translate(program: Program) -> Translation:
    """Translate a program. Raises UnsupportedError for the first thing the target cannot do."""
    _refuse(program)
    pool = MapPool()
    profiles = {p.name: layout_profile(program, p, pool) for p in program.profiles.values()}
    tables = {t.name: layout_table(program, t, pool, profiles) for t in program.tables()}
    layout = make_layout(program, max([8] + [TUPLE_HEADER + t.key_size for t in tables.values()]))
    counters = {
        c.name: CounterLayout(c.name, pool.add(counter_map(c.name, c.size)), c.size)
        for c in program.counters.values()
        if c.table is None
    }
    registers = {r.name: _register(r, pool) for r in program.registers.values()}
    meters = {m.name: layout_meter(m, m.size, pool) for m in program.meters.values() if m.table is None}
    digests = {d.id: layout_digest(program, d) for d in program.digests.values()}
    ring = pool.add(MapSpec("ring", MapType.RINGBUF, 0, 0, RING_SIZE)) if digests else None
    value_sets = {v.name: layout_value_set(program, v, pool) for v in program.value_sets.values()}
    lock = pool.add(MapSpec("lock", MapType.ARRAY, 4, 4, 1, lock=True)) if registers else None
    scratch = pool.add(MapSpec("scratch", MapType.PERCPU_ARRAY, 4, layout.size, 1, shared=True))
    ports = pool.add(MapSpec("ports", MapType.ARRAY, 4, 4, PORTS))
    ifindexes = pool.add(MapSpec("ifindexes", MapType.HASH, 4, 4, PORTS, NO_PREALLOC))
    module = ir.Module(name="switch")
    module.triple = "bpfel"
    function = ir.Function(module, ir.FunctionType(I32, [PTR]), "switch")
    function.section = SECTION
    asm = Asm(module, function)
    multicasts, clones = program_multicasts(program), program_clones(program)
    copies = CopyMaps(pool) if multicasts or clones else None
    names = names_map(program, layout, pool)
    with asm.place("what comes before the parser"):
        unit = _enter(program, layout, asm, function.args[0], pool, ifindexes, scratch, copies, names)
    unit.tables, unit.counters, unit.registers, unit.profiles = tables, counters, registers, profiles
    unit.lock_map, unit.meters = lock, meters
    unit.queue_map = layout_queues(program, layout, pool)
    unit.digests, unit.ring_map, unit.value_sets = digests, ring, value_sets
    with asm.place("what lies between controls"):
        _body(unit, ports, copies)
    plan = Plan(
        tuple(pool.specs),
        tables,
        counters,
        registers,
        profiles,
        ports,
        ifindexes,
        meters,
        digests=digests,
        ring_map=ring,
        value_sets=value_sets,
        multicast_map=copies.groups if copies is not None and multicasts else None,
        clone_map=copies.groups if copies is not None and clones else None,
        names_map=names,
        self_map=None if copies is None else copies.program,
        queue_map=unit.queue_map,
    )
    return Translation(str(module), plan, tuple(asm.marks.names))


def _register(register: RegisterArray, pool: MapPool) -> RegisterLayout:
    size = slot_size(register.width)
    cells = round8(size * max(register.size, 1))
    spec = MapSpec(register.name, MapType.ARRAY, 4, cells, 1, MMAPABLE)
    return RegisterLayout(register.name, pool.add(spec), register.size, register.width, size)


def _refuse(program: Program) -> None:
    for part in program.unread:
        raise UnsupportedError(f"{part.what} {part.name}", str(part.source))
    for register in program.registers.values():
        if register.width > WIDEST:
            raise UnsupportedError(f"register {register.name} of {register.width} bits", str(register.source))


def _enter(
    program: Program,
    layout: Layout,
    asm: Asm,
    ctx: Value,
    pool: MapPool,
    ifindex_map: int,
    scratch_map: int,
    copies: CopyMaps | None,
    names: int | None,
) -> Unit:
    """Entry code: the frame's length and port, scratch memory cleared, intrinsic metadata set."""
    b = asm.b
    # Each field of the context is read once, here: loads in several places get merged into one with a
    # computed address, which the verifier refuses.
    length = asm.load(asm.at(ctx, _LEN), 32, 4)
    tagged = asm.load(asm.at(ctx, _VLAN_PRESENT), 32, 4)
    ifindex = asm.load(asm.at(ctx, _IFINDEX), 32, 4)
    again = None if names is None else Again(names, asm.load(asm.at(ctx, MARK), 32, 4), ifindex)
    zero, index = key_cell(asm, 0), key_cell(asm, None)
    port_key = key_cell(asm, None)
    asm.store(ifindex, port_key, 4)
    drop, known, ready = asm.block("drop"), asm.block("known.port"), asm.block("ready")
    port_cell = asm.helper(Helper.MAP_LOOKUP_ELEM, asm.map_ptr(ifindex_map), port_key)
    b.cbranch(asm.is_null(port_cell), drop, known)
    asm.enter(drop)
    b.ret(const(32, SHOT))
    asm.enter(known)
    port = asm.load(port_cell, 32, 4)
    scratch = asm.helper(Helper.MAP_LOOKUP_ELEM, asm.map_ptr(scratch_map), zero)
    b.cbranch(asm.is_null(scratch), drop, ready)
    asm.enter(ready)
    copy = None if copies is None else resume(asm, layout, scratch)
    if again is not None:
        length = arrive(asm, layout, ctx, scratch, again, length, drop)
    length = received = _restore_tags(asm, layout, ctx, scratch, tagged, length, drop)
    if again is not None:
        length, received = keep_bytes(asm, layout, ctx, scratch, length, drop)
    asm.zero(scratch, 0, layout.zeroed)
    machine = Machine(program, layout, asm, scratch)
    unit = Unit(program, layout, asm, machine, ctx, received, port, zero, index, drop, pool)
    unit.truncates, unit.frame_length, unit.copy = program_truncates(program), length, copy
    unit.again = again
    unit.set_standard("ingress_port", port)
    unit.set_standard("packet_length", received)
    if unit.has_standard("packet_length"):
        asm.store(received, asm.at(scratch, layout.length), 4)
    return unit


def _restore_tags(
    asm: Asm, layout: Layout, ctx: Value, scratch: Value, tagged: Value, length: Value, drop: Any
) -> Value:
    """Put VLAN tags back where they were on the wire: the kernel takes them out of a frame on arrival.

    Returns the length of the frame with its tags. Programs see what BMv2 sees, which gets them put back too.
    """
    b = asm.b
    begin = b.block
    plain = asm.block("untagged")
    strip = asm.block("tag.0")
    b.cbranch(b.icmp_unsigned("==", tagged, const(32, 0)), plain, strip)
    asm.enter(plain)
    total = b.phi(I32)
    total.add_incoming(length, begin)
    asm.enter(strip)
    # The tags are collected behind the addresses that have to go in front of them.
    buffer = layout.buffer
    for i in range(_TAGS):
        tci = asm.load(asm.at(ctx, _VLAN_TCI), 32, 4)
        proto = asm.load(asm.at(ctx, _VLAN_PROTO), 32, 4)
        asm.store(asm.fit(proto, 16), asm.at(scratch, buffer + 12 + 4 * i))
        asm.store_be(asm.fit(tci, 16), scratch, buffer + 14 + 4 * i, 2)
        popped, write, again = (asm.block(f"tag.{i}.{n}") for n in ("popped", "write", "again"))
        failed = asm.helper(Helper.VLAN_POP, ctx)
        b.cbranch(b.icmp_unsigned("==", failed, const(64, 0)), popped, drop)
        asm.enter(popped)
        more = asm.load(asm.at(ctx, _VLAN_PRESENT), 32, 4)
        b.cbranch(b.icmp_unsigned("==", more, const(32, 0)), write, again)
        asm.enter(write)
        size = 4 * (i + 1)
        to = asm.at(scratch, buffer)
        for step, args in (
            (Helper.SKB_CHANGE_HEAD, (const(64, size), const(64, 0))),
            (Helper.SKB_LOAD_BYTES, (const(64, size), to, const(64, 12))),
            (Helper.SKB_STORE_BYTES, (const(64, 0), to, const(64, 12 + size), const(64, 0))),
        ):
            fine = asm.block("tag.fine")
            failed = asm.helper(step, ctx, *args)
            b.cbranch(b.icmp_unsigned("==", failed, const(64, 0)), fine, drop)
            asm.enter(fine)
        total.add_incoming(b.add(length, const(32, size)), b.block)
        b.branch(plain)
        asm.enter(again)
    b.branch(drop)
    asm.enter(plain)
    return total


def _body(u: Unit, port_map: int, copies: CopyMaps | None) -> None:
    asm, b = u.asm, u.asm.b
    if u.has_standard("ingress_global_timestamp"):
        u.set_standard("ingress_global_timestamp", _microseconds(u))
    parsed = asm.block("parsed")
    if u.again is not None:
        egress_clone, cut = asm.block("egress.clone"), asm.block("cut")
        begin(u, egress_clone, cut)
    ParserWriter(u, parsed).run()
    if u.again is not None:
        with asm.place("clones"):
            _clones(u, egress_clone, copies)
    with asm.place("verify_checksum"):
        verify_checksums(u)
    _control(u, u.program.ingress, "ingress")
    if u.again is not None:
        clone_if_asked(u, Why.INGRESS_CLONE)
    send_digest(u)
    if u.again is not None:
        resubmit_if_asked(u)
        u.set_standard("instance_type", const(32, Why.NEW))
    if copies is not None:
        begin_copies(u)
    spec = u.machine.read(FieldRef(STANDARD, "egress_spec"), Source())
    port = asm.fit(spec, 32)
    egress, sent = asm.block("egress"), asm.block("sent")
    b.cbranch(b.icmp_unsigned("==", port, const(32, DROP_PORT)), u.drop, egress)
    asm.enter(egress)
    _egress(u, port, u.drop, sent)

    asm.enter(sent)
    with asm.place("the deparser"):
        writer = _deparser(u, u.drop)
        length = writer.run()
    if u.again is not None:
        recirculate_if_asked(u, length, None)
    if u.truncates:
        writer.cut(length)
    _leave(u, port_map, port, _class(u))
    if u.again is not None:
        asm.enter(cut)
        _leave(u, port_map, session_of(u), class_of(u))
    if copies is not None:
        _copies(u, port_map, copies)


def _clones(u: Unit, egress_clone: Any, copies: CopyMaps | None) -> None:
    """Behind the parser: let clones go their own way. The builder goes on with other frames."""
    asm, b = u.asm, u.asm.b
    ingress_clone, other = asm.block("ingress.clone"), asm.block("no.clone")
    is_clone = b.icmp_unsigned("==", why_of(u), const(32, Why.INGRESS_CLONE))
    b.cbranch(is_clone, ingress_clone, other)
    for why, block in ((Why.INGRESS_CLONE, ingress_clone), (Why.EGRESS_CLONE, egress_clone)):
        asm.enter(block)
        if copies is None:
            b.branch(u.drop)
            continue
        if why is Why.EGRESS_CLONE:
            restore_image(u)
        become_clone(u, why)
        begin_session(u, copies)
    asm.enter(other)


def _leave(u: Unit, port_map: int, port: Value, number: Value | None) -> None:
    """Let a frame leave by a port, in a class if there is one. Ends the current block."""
    asm, b = u.asm, u.asm.b
    out, send = asm.block("out"), asm.block("send")
    asm.store(port, u.index_key, 4)
    cell = asm.helper(Helper.MAP_LOOKUP_ELEM, asm.map_ptr(port_map), u.index_key)
    b.cbranch(asm.is_null(cell), u.drop, out)
    asm.enter(out)
    ifindex = asm.load(cell, 32, 4)
    # redirect() to interface 0 would still say that all is well.
    b.cbranch(b.icmp_unsigned("==", ifindex, const(32, 0)), u.drop, send)
    asm.enter(send)
    if number is not None:
        asm.store(number, asm.at(u.ctx, _PRIORITY), 4)
    join_queue(u, port, asm.load(asm.at(u.ctx, _LEN), 32, 4))
    b.ret(asm.fit(asm.helper(Helper.REDIRECT, ifindex, const(64, 0)), 32))


def _egress(u: Unit, port: Value, dropped: Any, sent: Any) -> None:
    """Write the egress control for a frame that leaves by `port`."""
    asm, b = u.asm, u.asm.b
    u.set_standard("egress_port", port)
    u.set_standard("egress_spec", const(32, 0))  # anything but the drop port
    if u.has_standard("packet_length"):
        u.set_standard("packet_length", asm.load(asm.at(u.machine.scratch, u.layout.length), 32, 4))
    if any(u.has_standard(name) for name in TOLD):
        look_at_queue(u, port)
    _control(u, u.program.egress, "egress")
    if u.again is not None:
        clone_if_asked(u, Why.EGRESS_CLONE)
    spec = u.machine.read(FieldRef(STANDARD, "egress_spec"), Source())
    b.cbranch(b.icmp_unsigned("==", asm.fit(spec, 32), const(32, DROP_PORT)), dropped, sent)


def _deparser(u: Unit, out: Any) -> DeparserWriter:
    """Write what comes before headers go out."""
    update_checksums(u)
    statements = ActionWriter(u, out)
    for p in u.program.deparser.primitives:
        statements.statement(p)
    return DeparserWriter(u)


def _class(u: Unit) -> Value | None:
    """What to set skb->priority to, from standard_metadata.priority; None where no statement names that."""
    if not u.has_standard("priority"):
        return None
    priority = u.asm.fit(u.machine.read(FieldRef(STANDARD, "priority"), Source()), 32)
    return u.asm.b.add(priority, const(32, QDISC_CLASS))


def _copies(u: Unit, port_map: int, copies: CopyMaps) -> None:
    """Write the code that makes copies: each goes through egress and the deparser by itself."""
    asm, b = u.asm, u.asm.b
    with each_copy(u, copies) as (copy, port, after):
        sent, known, send = asm.block("copy.sent"), asm.block("copy.known"), asm.block("copy.send")
        _egress(copy, port, after, sent)
        asm.enter(sent)
        with asm.place("the deparser of copies"):
            length = emitted(copy, _deparser(copy, after).emit_all())
        number = _class(copy)
        if u.again is not None:
            recirculate_if_asked(copy, length, after)
            if number is None:
                number = b.add(class_of_copy(u), const(32, QDISC_CLASS))
            if u.truncates:
                _send_cut(copy, length, port, number, after)
        asm.store(port, u.index_key, 4)
        cell = asm.helper(Helper.MAP_LOOKUP_ELEM, asm.map_ptr(port_map), u.index_key)
        b.cbranch(asm.is_null(cell), after, known)
        asm.enter(known)
        ifindex = asm.load(cell, 32, 4)
        b.cbranch(b.icmp_unsigned("==", ifindex, const(32, 0)), after, send)
        asm.enter(send)
        if number is not None:
            asm.store(number, asm.at(u.ctx, _PRIORITY), 4)
        join_queue(copy, port, asm.load(asm.at(u.ctx, _LEN), 32, 4))
        asm.helper(Helper.CLONE_REDIRECT, u.ctx, ifindex, const(64, 0))
        b.branch(after)


def _send_cut(copy: Unit, length: Value, port: Value, number: Value, after: Any) -> None:
    """A copy that truncate() has cut begins anew: the frame has to stay whole for the copies behind it."""
    asm, b = copy.asm, copy.asm.b
    keep = keep_wish(copy)
    shorter, whole = asm.block("copy.cut"), asm.block("copy.whole")
    b.cbranch(b.icmp_unsigned("<", keep, length), shorter, whole)
    asm.enter(shorter)
    send_again(copy, Why.CUT, length, port, number, keep, after)
    b.branch(after)
    asm.enter(whole)


def _microseconds(u: Unit) -> Value:
    now = u.asm.helper(Helper.KTIME_GET_NS)
    return u.asm.b.udiv(now, const(64, 1000))


def _control(u: Unit, pipeline: Pipeline, name: str) -> None:
    """Write a control: one block per node, joined by their `next`. Ends in the block behind it."""
    asm, b = u.asm, u.asm.b
    done = asm.block(f"{name}.done")
    nodes: dict[str | None, object] = {None: done}
    for key in pipeline.nodes:
        nodes[key] = asm.block(f"{name}.{key}")
    b.branch(nodes[pipeline.start])
    actions = ActionWriter(u, done)
    tables = TableWriter(u, actions, nodes)
    for key, node in pipeline.nodes.items():
        asm.enter(nodes[key])
        with asm.place(f"{_KINDS[type(node)]} {node.name}", node.source):
            match node:
                case Table():
                    tables.run(node)
                case Conditional():
                    truth = Evaluator(u.machine, node.source).truth(node.expr)
                    b.cbranch(truth, nodes[node.true_next], nodes[node.false_next])
                case ActionCall():
                    actions.run(u.program.actions[node.action_id], [])
                    asm.goto(nodes[node.next])
    asm.enter(done)
    if any(p.op == "exit" for a in u.program.actions.values() for p in a.primitives):
        asm.store(const(8, 0), asm.at(u.machine.scratch, u.layout.exited))
