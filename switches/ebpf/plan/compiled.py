"""A compiled program, ready to be loaded any number of times."""

from __future__ import annotations

from dataclasses import dataclass

from mrclab.switches.ebpf.plan.layouts import Plan
from mrclab.switches.ebpf.plan.source_map import SourceMap
from mrclab.switches.v1model.program import Program


@dataclass(frozen=True, eq=False)  # compared by identity
class Compiled:
    """A program, its BPF instructions with marks in place of map descriptors, and its plan."""

    program: Program
    plan: Plan
    code: bytes
    source_map: SourceMap
