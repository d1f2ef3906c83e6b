"""Write the code of digests: at the end of ingress, a requested digest is sent to the server as a record."""

from __future__ import annotations

from mrclab.linux.errors import UnsupportedError
from mrclab.switches.ebpf.codegen.analysis.scratch_layout import CHUNK
from mrclab.switches.ebpf.codegen.backend.asm import Helper, const
from mrclab.switches.ebpf.codegen.codegen_context import CodegenContext
from mrclab.switches.ebpf.plan import DIGEST_HEADER, DigestLayout, round8
from mrclab.switches.v1model.declarations import DigestList
from mrclab.switches.v1model.expressions import FieldRef, Source
from mrclab.switches.v1model.program import Program


def layout_digest(program: Program, digest: DigestList) -> DigestLayout:
    """Lay out a digest's fields in a record. Raise UnsupportedError if there are too many."""
    places, at = [], DIGEST_HEADER
    for ref in digest.fields:
        size = round8((program.field(ref).width + 7) // 8)
        places.append((at, size))
        at += size
    if at > CHUNK:
        raise UnsupportedError(f"digest {digest.name} of so many fields", str(digest.source))
    return DigestLayout(digest.name, tuple(places), at)


def send_digest(gen: CodegenContext) -> None:
    """Write the code that sends the requested digest. If the ring buffer is full, the record is lost."""
    if gen.ring_map is None:
        return
    asm, b, memory, buffer = gen.asm, gen.asm.b, gen.machine.scratch, gen.layout.buffer
    asked = asm.load(asm.at(memory, gen.layout.digest), 32, 4)
    done = asm.block("digest.done")
    choose = b.switch(asked, done)
    for number, layout in gen.digests.items():
        block = asm.block(f"digest.{number}")
        choose.add_case(const(32, number), block)
        asm.enter(block)
        asm.store(const(64, number), asm.at(memory, buffer), 8)
        for ref, (offset, size) in zip(gen.program.digests[number].fields, layout.fields, strict=True):
            value = gen.machine.read(FieldRef(ref.header, ref.field), Source())
            asm.store(asm.fit(value, size * 8), asm.at(memory, buffer + offset), 8)
        record = asm.at(memory, buffer)
        asm.helper(
            Helper.RINGBUF_OUTPUT, asm.map_ptr(gen.ring_map), record, const(64, layout.size), const(64, 0)
        )
        b.branch(done)
    asm.enter(done)
