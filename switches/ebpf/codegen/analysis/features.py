"""Which features a program uses: multicast, clones, truncation."""

from __future__ import annotations

from collections.abc import Iterator

from mrclab.switches.ebpf.codegen.analysis.usage import RESULTS
from mrclab.switches.v1model.expressions import (
    Const,
    FieldRef,
    Primitive,
)
from mrclab.switches.v1model.program import Program


def multicast_writes(program: Program) -> Iterator[Primitive]:
    """Yield the statements that send a frame to a multicast group."""
    states = (op for s in program.parser.states.values() for op in s.ops)
    for p in (*states, *(p for a in program.actions.values() for p in a.primitives)):
        at = RESULTS.get(p.op, 0)
        target = p.args[at] if len(p.args) > at else None
        if target == FieldRef("standard_metadata", "mcast_grp") and p.args[1:] != (Const(0),):
            yield p


def program_multicasts(program: Program) -> bool:
    """Return True if a program sends any frame to a multicast group."""
    return any(True for _ in multicast_writes(program))


def program_clones(program: Program) -> bool:
    """Return True if a program clones any frame."""
    return _uses(program, "clone_ingress_pkt_to_egress", "clone_egress_pkt_to_egress")


def program_truncates(program: Program) -> bool:
    """Return True if a program truncates any frame."""
    return _uses(program, "truncate")


def program_reenters(program: Program) -> bool:
    """Return True if frames, or clones of them, can enter the pipeline again (see `recirculation`)."""
    cut_copies = program_multicasts(program) and program_truncates(program)
    return program_clones(program) or _uses(program, "resubmit", "recirculate") or cut_copies


def _uses(program: Program, *names: str) -> bool:
    return any(p.op in names for a in program.actions.values() for p in a.primitives)
