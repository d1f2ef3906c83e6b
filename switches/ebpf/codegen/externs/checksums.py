"""Checksums: verified behind the parser, updated before the deparser, in the order of the program."""

from __future__ import annotations

from collections.abc import Iterable

from mrclab.switches.ebpf.codegen.backend.asm import Value, const
from mrclab.switches.ebpf.codegen.codegen_context import CodegenContext
from mrclab.switches.ebpf.codegen.expressions import Evaluator
from mrclab.switches.ebpf.codegen.externs.hashes import HashWriter
from mrclab.switches.v1model.declarations import Checksum
from mrclab.switches.v1model.expressions import FieldRef


def verify_checksums(gen: CodegenContext) -> None:
    """Set checksum_error if a checksum is wrong and the program verifies checksums."""
    if not gen.has_standard("checksum_error"):
        return
    asm, b = gen.asm, gen.asm.b
    for c in (c for c in gen.program.checksums if c.verify):
        tests = [] if gen.program.headers[c.target.header].metadata else [_valid(gen, c)]
        look, wrong, done = (
            asm.block("checksum.look"),
            asm.block("checksum.wrong"),
            asm.block("checksum.done"),
        )
        b.cbranch(_all(gen, [*tests, *_condition(gen, c)]), look, done)
        asm.enter(look)
        computed = HashWriter(gen).hash(gen.program.calculations[c.calculation])
        found = gen.machine.read(c.target, c.source)
        width = max(64, found.type.width)
        b.cbranch(b.icmp_unsigned("==", asm.fit(computed, width), asm.fit(found, width)), done, wrong)
        asm.enter(wrong)
        gen.set_standard("checksum_error", const(32, 1))
        b.branch(done)
        asm.enter(done)


def update_checksums(gen: CodegenContext) -> None:
    """Recompute the checksums whose condition is true, their header valid or not, as BMv2 does."""
    asm, b = gen.asm, gen.asm.b
    for c in (c for c in gen.program.checksums if c.update):
        write, done = asm.block("checksum.write"), asm.block("checksum.done")
        b.cbranch(_all(gen, _condition(gen, c)), write, done)
        asm.enter(write)
        computed = HashWriter(gen).hash(gen.program.calculations[c.calculation])
        width = gen.program.field(c.target).width
        gen.machine.write(c.target, asm.fit(computed, width), c.source)
        b.branch(done)
        asm.enter(done)


def _valid(gen: CodegenContext, checksum: Checksum) -> Value:
    return gen.machine.read(FieldRef(checksum.target.header, "$valid$"), checksum.source)


def _condition(gen: CodegenContext, checksum: Checksum) -> list[Value]:
    if checksum.condition is None:
        return []
    return [Evaluator(gen.machine, checksum.source).truth(checksum.condition)]


def _all(gen: CodegenContext, tests: Iterable[Value]) -> Value:
    result = const(1, 1)
    for test in tests:
        result = gen.asm.b.and_(result, test)
    return result
