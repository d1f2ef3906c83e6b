"""A compiled program, ready to be loaded any number of times."""

from __future__ import annotations

from dataclasses import dataclass

from switches.ebpf.plan.layouts import Plan
from switches.v1model.program import Program


@dataclass(frozen=True, eq=False)  # compared by identity: one compilation, one value
class Compiled:
    """A program, its BPF instructions with marks where map descriptors go, and its run-time plan."""

    program: Program
    plan: Plan
    code: bytes
    places: tuple[tuple[int, str], ...] = ()  # the part of the program that begins at each instruction
