"""A model of P4's semantics: it computes the output frames of a v1model program, as BMv2 does.

Tests compare the targets with this model, frame by frame. The model and the compiler share only the reader of
the JSON, so the same error is unlikely in both. The model is slow and simple. Like BMv2, it computes with
integers of any size and truncates a value only when it is stored in a field.
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
