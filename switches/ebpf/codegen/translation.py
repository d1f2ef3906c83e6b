"""Translate a P4 program to LLVM IR: the entry code, the two controls, and the sending of the frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from mrclab.linux.bpf_types import MMAPABLE, NO_PREALLOC, MapSpec, MapType
from mrclab.linux.errors import UnsupportedError
from mrclab.switches.ebpf.codegen.actions import ActionWriter
from mrclab.switches.ebpf.codegen.analysis.scratch_layout import (
    Layout,
    make_layout,
    program_clones,
    program_multicasts,
    program_truncates,
    slot_size,
)
from mrclab.switches.ebpf.codegen.backend.asm import I32, PTR, Asm, Helper, MapPool, Value, const
from mrclab.switches.ebpf.codegen.codegen_context import STANDARD, CodegenContext, Recirculation, key_cell
from mrclab.switches.ebpf.codegen.deparser import DeparserWriter
from mrclab.switches.ebpf.codegen.expressions import Evaluator, Machine
from mrclab.switches.ebpf.codegen.externs.digests import layout_digest, send_digest
from mrclab.switches.ebpf.codegen.externs.hashes import update_checksums, verify_checksums
from mrclab.switches.ebpf.codegen.externs.queues import QUEUE_TIMES, join_queue, layout_queues, look_at_queue
from mrclab.switches.ebpf.codegen.externs.selectors import layout_profile
from mrclab.switches.ebpf.codegen.externs.stateful import layout_meter
from mrclab.switches.ebpf.codegen.parser import ParserWriter, layout_value_set
from mrclab.switches.ebpf.codegen.recirculation import (
    MARK,
    EntryReason,
    become_clone,
    class_of,
    clone_if_requested,
    cut_reentered,
    dispatch_reentry,
    entry_reason,
    identity_map,
    recirculate_if_requested,
    reinject,
    restore_image,
    resubmit_if_requested,
    session_of,
    take_trailer,
    truncated_length,
)
from mrclab.switches.ebpf.codegen.replication import (
    ReplicationMaps,
    begin_clone_session,
    begin_multicast,
    class_of_copy,
    each_copy,
    resume,
    store_lengths,
)
from mrclab.switches.ebpf.codegen.tables import TableWriter, layout_table
from mrclab.switches.ebpf.plan import (
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
from mrclab.switches.v1model.declarations import RegisterArray
from mrclab.switches.v1model.expressions import FieldRef, Source
from mrclab.switches.v1model.program import ActionCall, Conditional, Pipeline, Program, Table

SECTION = "classifier"
SHOT = 2  # TC_ACT_SHOT
# Offsets in struct __sk_buff of linux/bpf.h.
_LEN, _VLAN_PRESENT, _VLAN_TCI, _VLAN_PROTO, _PRIORITY, _IFINDEX = 0, 20, 24, 28, 32, 40
_KINDS = {Table: "table", Conditional: "condition", ActionCall: "call"}
_TAGS = 2  # maximum number of VLAN tags of a frame; a frame with more is dropped


@dataclass(frozen=True)
class Translation:
    """A program as LLVM IR text, and its plan: the maps and layouts for the runtime."""

    ir: str
    plan: Plan
    places: tuple[str, ...] = ()  # places in the P4 program, by line number of the debug information


def translate(program: Program) -> Translation:
    """Translate a program. Raise UnsupportedError for the first construct that the target cannot run."""
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
    copies = ReplicationMaps(pool) if multicasts or clones else None
    identity = identity_map(program, layout, pool)
    with asm.place("what comes before the parser"):
        gen = _enter(program, layout, asm, function.args[0], pool, ifindexes, scratch, copies, identity)
    gen.tables, gen.counters, gen.registers, gen.profiles = tables, counters, registers, profiles
    gen.lock_map, gen.meters = lock, meters
    gen.queue_map = layout_queues(program, layout, pool)
    gen.digests, gen.ring_map, gen.value_sets = digests, ring, value_sets
    with asm.place("what lies between controls"):
        _body(gen, ports, copies)
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
        identity_map=identity,
        self_map=None if copies is None else copies.program,
        queue_map=gen.queue_map,
    )
    return Translation(str(module), plan, tuple(asm.debug_info.names))


def _register(register: RegisterArray, pool: MapPool) -> RegisterLayout:
    size = slot_size(register.width)
    cells = round8(size * max(register.size, 1))
    spec = MapSpec(register.name, MapType.ARRAY, 4, cells, 1, MMAPABLE)
    return RegisterLayout(register.name, pool.add(spec), register.size, register.width, size)


def _refuse(program: Program) -> None:
    for part in program.unsupported:
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
    copies: ReplicationMaps | None,
    identity: int | None,
) -> CodegenContext:
    """Write the entry code: load the frame's length and port, clear scratch memory, set metadata."""
    b = asm.b
    # Load each field of the context (struct __sk_buff) only here. LLVM would merge loads at several places
    # into one load with a computed address, and the kernel's verifier rejects such a load.
    length = asm.load(asm.at(ctx, _LEN), 32, 4)
    tagged = asm.load(asm.at(ctx, _VLAN_PRESENT), 32, 4)
    ifindex = asm.load(asm.at(ctx, _IFINDEX), 32, 4)
    entry = None if identity is None else Recirculation(identity, asm.load(asm.at(ctx, MARK), 32, 4), ifindex)
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
    if entry is not None:
        length = take_trailer(asm, layout, ctx, scratch, entry, length, drop)
    length = received = _restore_tags(asm, layout, ctx, scratch, tagged, length, drop)
    if entry is not None:
        length, received = cut_reentered(asm, layout, ctx, scratch, length, drop)
    asm.zero(scratch, 0, layout.zeroed)
    machine = Machine(program, layout, asm, scratch)
    gen = CodegenContext(program, layout, asm, machine, ctx, received, zero, index, drop, pool)
    gen.truncates, gen.frame_length, gen.copies_block = program_truncates(program), length, copy
    gen.recirculation = entry
    gen.set_standard("ingress_port", port)
    gen.set_standard("packet_length", received)
    if gen.has_standard("packet_length"):
        asm.store(received, asm.at(scratch, layout.length), 4)
    return gen


def _restore_tags(
    asm: Asm, layout: Layout, ctx: Value, scratch: Value, tagged: Value, length: Value, drop: Any
) -> Value:
    """Write code that restores the VLAN tags. The kernel removes them from a frame on arrival.

    Return the length of the frame with its tags.
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
    # Collect the tags in the buffer, after 12 bytes for the Ethernet addresses.
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


def _body(gen: CodegenContext, port_map: int, copies: ReplicationMaps | None) -> None:
    asm, b = gen.asm, gen.asm.b
    if gen.has_standard("ingress_global_timestamp"):
        gen.set_standard("ingress_global_timestamp", _microseconds(gen))
    parsed = asm.block("parsed")
    if gen.recirculation is not None:
        egress_clone, cut = asm.block("egress.clone"), asm.block("cut")
        dispatch_reentry(gen, egress_clone, cut)
    ParserWriter(gen, parsed).run()
    if gen.recirculation is not None:
        with asm.place("clones"):
            _clones(gen, egress_clone, copies)
    with asm.place("verify_checksum"):
        verify_checksums(gen)
    _control(gen, gen.program.ingress, "ingress")
    if gen.recirculation is not None:
        clone_if_requested(gen, EntryReason.INGRESS_CLONE)
    send_digest(gen)
    if gen.recirculation is not None:
        resubmit_if_requested(gen)
        gen.set_standard("instance_type", const(32, EntryReason.NEW))
    if copies is not None:
        begin_multicast(gen)
    spec = gen.machine.read(FieldRef(STANDARD, "egress_spec"), Source())
    port = asm.fit(spec, 32)
    egress, sent = asm.block("egress"), asm.block("sent")
    b.cbranch(b.icmp_unsigned("==", port, const(32, DROP_PORT)), gen.drop, egress)
    asm.enter(egress)
    _egress(gen, port, gen.drop, sent)

    asm.enter(sent)
    with asm.place("the deparser"):
        writer = _deparser(gen, gen.drop)
        length = writer.run()
    if gen.recirculation is not None:
        recirculate_if_requested(gen, length, None)
    if gen.truncates:
        writer.cut(length)
    _leave(gen, port_map, port, _class(gen))
    if gen.recirculation is not None:
        asm.enter(cut)
        _leave(gen, port_map, session_of(gen), class_of(gen))
    if copies is not None:
        _copies(gen, port_map, copies)


def _clones(gen: CodegenContext, egress_clone: Any, copies: ReplicationMaps | None) -> None:
    """Write the code that handles clones after the parser. Code added later handles all other frames."""
    asm, b = gen.asm, gen.asm.b
    ingress_clone, other = asm.block("ingress.clone"), asm.block("no.clone")
    is_clone = b.icmp_unsigned("==", entry_reason(gen), const(32, EntryReason.INGRESS_CLONE))
    b.cbranch(is_clone, ingress_clone, other)
    for why, block in ((EntryReason.INGRESS_CLONE, ingress_clone), (EntryReason.EGRESS_CLONE, egress_clone)):
        asm.enter(block)
        if copies is None:
            b.branch(gen.drop)
            continue
        if why is EntryReason.EGRESS_CLONE:
            restore_image(gen)
        become_clone(gen, why)
        begin_clone_session(gen, copies)
    asm.enter(other)


def _leave(gen: CodegenContext, port_map: int, port: Value, number: Value | None) -> None:
    """Write code that sends the frame to a port and ends the block. `number` is skb->priority, if given."""
    asm, b = gen.asm, gen.asm.b
    out, send = asm.block("out"), asm.block("send")
    asm.store(port, gen.index_key, 4)
    cell = asm.helper(Helper.MAP_LOOKUP_ELEM, asm.map_ptr(port_map), gen.index_key)
    b.cbranch(asm.is_null(cell), gen.drop, out)
    asm.enter(out)
    ifindex = asm.load(cell, 32, 4)
    # If there is no such port, drop the frame: redirect() to interface 0 would report success.
    b.cbranch(b.icmp_unsigned("==", ifindex, const(32, 0)), gen.drop, send)
    asm.enter(send)
    if number is not None:
        asm.store(number, asm.at(gen.ctx, _PRIORITY), 4)
    join_queue(gen, port, asm.load(asm.at(gen.ctx, _LEN), 32, 4))
    b.ret(asm.fit(asm.helper(Helper.REDIRECT, ifindex, const(64, 0)), 32))


def _egress(gen: CodegenContext, port: Value, dropped: Any, sent: Any) -> None:
    """Write the egress control for a frame that leaves by `port`."""
    asm, b = gen.asm, gen.asm.b
    gen.set_standard("egress_port", port)
    gen.set_standard("egress_spec", const(32, 0))  # after egress, only the value DROP_PORT counts
    if gen.has_standard("packet_length"):
        gen.set_standard("packet_length", asm.load(asm.at(gen.machine.scratch, gen.layout.length), 32, 4))
    if any(gen.has_standard(name) for name in QUEUE_TIMES):
        look_at_queue(gen, port)
    _control(gen, gen.program.egress, "egress")
    if gen.recirculation is not None:
        clone_if_requested(gen, EntryReason.EGRESS_CLONE)
    spec = gen.machine.read(FieldRef(STANDARD, "egress_spec"), Source())
    b.cbranch(b.icmp_unsigned("==", asm.fit(spec, 32), const(32, DROP_PORT)), dropped, sent)


def _deparser(gen: CodegenContext, out: Any) -> DeparserWriter:
    """Write code that updates checksums and runs the deparser's statements. Return the writer of headers."""
    update_checksums(gen)
    statements = ActionWriter(gen, out)
    for p in gen.program.deparser.primitives:
        statements.statement(p)
    return DeparserWriter(gen)


def _class(gen: CodegenContext) -> Value | None:
    """Return skb->priority for standard_metadata.priority; None if the program does not use this field."""
    if not gen.has_standard("priority"):
        return None
    priority = gen.asm.fit(gen.machine.read(FieldRef(STANDARD, "priority"), Source()), 32)
    return gen.asm.b.add(priority, const(32, QDISC_CLASS))


def _copies(gen: CodegenContext, port_map: int, copies: ReplicationMaps) -> None:
    """Write the code that makes copies. For each copy it runs egress and the deparser."""
    asm, b = gen.asm, gen.asm.b
    with each_copy(gen, copies) as (copy, port, after):
        sent, known, send = asm.block("copy.sent"), asm.block("copy.known"), asm.block("copy.send")
        _egress(copy, port, after, sent)
        asm.enter(sent)
        with asm.place("the deparser of copies"):
            length = store_lengths(copy, _deparser(copy, after).emit_all())
        number = _class(copy)
        if gen.recirculation is not None:
            recirculate_if_requested(copy, length, after)
            if number is None:
                number = b.add(class_of_copy(gen), const(32, QDISC_CLASS))
            if gen.truncates:
                _send_cut(copy, length, port, number, after)
        asm.store(port, gen.index_key, 4)
        cell = asm.helper(Helper.MAP_LOOKUP_ELEM, asm.map_ptr(port_map), gen.index_key)
        b.cbranch(asm.is_null(cell), after, known)
        asm.enter(known)
        ifindex = asm.load(cell, 32, 4)
        b.cbranch(b.icmp_unsigned("==", ifindex, const(32, 0)), after, send)
        asm.enter(send)
        if number is not None:
            asm.store(number, asm.at(gen.ctx, _PRIORITY), 4)
        join_queue(copy, port, asm.load(asm.at(gen.ctx, _LEN), 32, 4))
        asm.helper(Helper.CLONE_REDIRECT, gen.ctx, ifindex, const(64, 0))
        b.branch(after)


def _send_cut(copy: CodegenContext, length: Value, port: Value, number: Value, after: Any) -> None:
    """Send a truncated copy by `reinject`. The frame itself keeps its length for the other copies."""
    asm, b = copy.asm, copy.asm.b
    keep = truncated_length(copy)
    shorter, whole = asm.block("copy.cut"), asm.block("copy.whole")
    b.cbranch(b.icmp_unsigned("<", keep, length), shorter, whole)
    asm.enter(shorter)
    reinject(copy, EntryReason.CUT, length, port, number, keep, after)
    b.branch(after)
    asm.enter(whole)


def _microseconds(gen: CodegenContext) -> Value:
    now = gen.asm.helper(Helper.KTIME_GET_NS)
    return gen.asm.b.udiv(now, const(64, 1000))


def _control(gen: CodegenContext, pipeline: Pipeline, name: str) -> None:
    """Write a control: one block per node, with jumps. Then the builder is at the end of the control."""
    asm, b = gen.asm, gen.asm.b
    done = asm.block(f"{name}.done")
    nodes: dict[str | None, object] = {None: done}
    for key in pipeline.nodes:
        nodes[key] = asm.block(f"{name}.{key}")
    b.branch(nodes[pipeline.start])
    actions = ActionWriter(gen, done)
    tables = TableWriter(gen, actions, nodes)
    for key, node in pipeline.nodes.items():
        asm.enter(nodes[key])
        with asm.place(f"{_KINDS[type(node)]} {node.name}", node.source):
            match node:
                case Table():
                    tables.run(node)
                case Conditional():
                    truth = Evaluator(gen.machine, node.source).truth(node.expr)
                    b.cbranch(truth, nodes[node.true_next], nodes[node.false_next])
                case ActionCall():
                    actions.run(gen.program.actions[node.action_id], [])
                    asm.goto(nodes[node.next])
    asm.enter(done)
    if any(p.op == "exit" for a in gen.program.actions.values() for p in a.primitives):
        asm.store(const(8, 0), asm.at(gen.machine.scratch, gen.layout.exited))
