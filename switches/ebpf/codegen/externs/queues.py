"""Write code that computes the state of a port's queue: how many frames wait, and when they leave.

The program runs before the kernel's queue and cannot read its state. But the queue is a token bucket with a
known rate (`tbf` or `htb`, see `switches/ebpf/runtime/interfaces.py`). So the program computes the time at
which a frame will leave, and stores this time for the last 1,024 frames. A frame still waits if its time is
in the future. Frames that other programs send over the port are not counted.
"""

from __future__ import annotations

from mrclab.linux.bpf_types import NO_PREALLOC, MapSpec, MapType
from mrclab.switches.ebpf.codegen.analysis.scratch_layout import Layout
from mrclab.switches.ebpf.codegen.backend.asm import Helper, MapPool, Value, const
from mrclab.switches.ebpf.codegen.codegen_context import STANDARD, CodegenContext
from mrclab.switches.ebpf.plan import (
    CELL_BURST,
    CELL_BYTE_COST,
    CELL_COUNT,
    CELL_HORIZON,
    CELL_LEAST,
    CELL_LEAVE,
    CELL_LIMIT,
    CELL_OVERHEAD,
    CELL_ROOM,
    CELL_SIZE,
    CELL_WHOLE,
    COST_FRACTION_BITS,
    PORTS,
    QUEUE_FIELDS,
    SLOTS,
    SLOTS_LOG,
)
from mrclab.switches.v1model.expressions import FieldRef
from mrclab.switches.v1model.program import Program

QUEUE_TIMES = (*QUEUE_FIELDS, "egress_global_timestamp")


def layout_queues(program: Program, layout: Layout, pool: MapPool) -> int | None:
    """Add the map of the ports' queues. Return its index, or None if the program reads no queue metadata."""
    if not any(FieldRef(STANDARD, name) in layout.usage.read for name in QUEUE_TIMES):
        return None
    return pool.add(MapSpec("queues", MapType.HASH, 4, CELL_SIZE, PORTS, NO_PREALLOC, lock=True))


def look_at_queue(gen: CodegenContext, port: Value) -> None:
    """Write code that sets the queue metadata of a frame before it joins the queue of a port."""
    asm, b = gen.asm, gen.asm.b
    now = asm.helper(Helper.KTIME_GET_NS)
    for name in ("enq_timestamp", "egress_global_timestamp"):
        gen.set_standard(name, b.udiv(now, const(64, 1000)))
    if gen.queue_map is None:
        return
    for name in ("enq_qdepth", "deq_timedelta", "deq_qdepth"):
        gen.set_standard(name, const(32, 0))
    found, done = asm.block("queue.found"), asm.block("queue.known")
    cell = _cell(gen, port)
    b.cbranch(asm.is_null(cell), done, found)
    asm.enter(found)
    depth = _waiting(gen, cell, now)
    wait, _ = _wait(gen, cell, now, gen.frame_length)
    for name in ("enq_qdepth", "deq_qdepth"):
        gen.set_standard(name, depth)
    gen.set_standard("deq_timedelta", b.udiv(wait, const(64, 1000)))
    gen.set_standard("egress_global_timestamp", b.udiv(b.add(now, wait), const(64, 1000)))
    b.branch(done)
    asm.enter(done)


def join_queue(gen: CodegenContext, port: Value, length: Value) -> None:
    """Write code that records a frame of `length` bytes in the queue of a port."""
    if gen.queue_map is None:
        return
    asm, b = gen.asm, gen.asm.b
    found, done = asm.block("queue.join"), asm.block("queue.joined")
    now = asm.helper(Helper.KTIME_GET_NS)
    cell = _cell(gen, port)
    b.cbranch(asm.is_null(cell), done, found)
    asm.enter(found)
    asm.helper(Helper.SPIN_LOCK, cell)
    depth = _waiting(gen, cell, now)
    wait, horizon = _wait(gen, cell, now, length)
    lost = b.or_(
        b.icmp_unsigned(">=", depth, asm.fit(asm.load(asm.at(cell, CELL_LIMIT), 32, 4), 64)),
        b.icmp_unsigned(">", wait, asm.load(asm.at(cell, CELL_ROOM), 64, 8)),
    )
    count = asm.load(asm.at(cell, CELL_COUNT), 32, 4)
    slot = _slot(gen, cell, asm.fit(count, 64))
    asm.store(b.select(lost, asm.load(slot, 64, 8), b.add(now, wait)), slot, 8)
    asm.store(b.add(count, b.select(lost, const(32, 0), const(32, 1))), asm.at(cell, CELL_COUNT), 4)
    place = asm.at(cell, CELL_HORIZON)
    asm.store(b.select(lost, asm.load(place, 64, 8), horizon), place, 8)
    asm.helper(Helper.SPIN_UNLOCK, cell)
    b.branch(done)
    asm.enter(done)


def _cell(gen: CodegenContext, port: Value) -> Value:
    gen.asm.store(port, gen.index_key, 4)
    assert gen.queue_map is not None
    return gen.asm.helper(Helper.MAP_LOOKUP_ELEM, gen.asm.map_ptr(gen.queue_map), gen.index_key)


def _slot(gen: CodegenContext, cell: Value, number: Value) -> Value:
    place = gen.asm.b.and_(number, const(64, SLOTS - 1))
    return gen.asm.at(cell, gen.asm.b.add(gen.asm.b.mul(place, const(64, 8)), const(64, CELL_LEAVE)))


def _waiting(gen: CodegenContext, cell: Value, now: Value) -> Value:
    """Return the number of frames in the queue. Departure times are sorted, so use a binary search.

    The code has no branches, because the kernel's verifier would check every path through them.
    """
    asm, b = gen.asm, gen.asm.b
    count = asm.fit(asm.load(asm.at(cell, CELL_COUNT), 32, 4), 64)
    waiting: Value = const(64, 0)
    for k in reversed(range(SLOTS_LOG)):
        probed = b.add(waiting, const(64, 1 << k))
        leaves = asm.load(_slot(gen, cell, b.sub(count, probed)), 64, 8)
        later = b.lshr(b.sub(now, leaves), const(64, 63))  # 1 if the frame has not left yet
        waiting = b.add(waiting, b.shl(later, const(64, k)))
    return waiting


def _wait(gen: CodegenContext, cell: Value, now: Value, length: Value) -> tuple[Value, Value]:
    """Return the wait of a new frame, and the time when the bucket has tokens for all frames; both in ns."""
    asm, b = gen.asm, gen.asm.b

    def word(at: int) -> Value:
        return asm.fit(asm.load(asm.at(cell, at), 32, 4), 64)

    def larger(x: Value, y: Value) -> Value:
        return b.select(b.icmp_unsigned(">", x, y), x, y)

    size = larger(b.add(asm.fit(length, 64), word(CELL_OVERHEAD)), word(CELL_LEAST))
    cost = b.lshr(b.mul(size, asm.load(asm.at(cell, CELL_BYTE_COST), 64, 8)), const(64, COST_FRACTION_BITS))
    start = larger(asm.load(asm.at(cell, CELL_HORIZON), 64, 8), now)
    burst = asm.load(asm.at(cell, CELL_BURST), 64, 8)
    ahead = b.add(b.sub(start, now), b.mul(cost, word(CELL_WHOLE)))
    return b.sub(larger(ahead, burst), burst), b.add(start, cost)
