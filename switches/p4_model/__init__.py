"""The independent model of P4's semantics: the output frames of a v1model program, as BMv2 computes them.

Targets are compared with it, frame by frame, and so can be a simulator that runs the same programs. It shares
nothing with the compiler but the reader of the JSON. It is slow and readable: numbers are Python's, so that
expressions are evaluated as BMv2 evaluates them, with integers of any size, cut only when stored in a field.
"""

from mrclab.switches.p4_model.interpreter import Interpreter
from mrclab.switches.p4_model.machine import (
    Between,
    CloneSession,
    Exact,
    Key,
    Masked,
    Meter,
    Prefix,
    Profile,
    Rule,
)

__all__ = [
    "Between",
    "CloneSession",
    "Exact",
    "Interpreter",
    "Key",
    "Masked",
    "Meter",
    "Prefix",
    "Profile",
    "Rule",
]
