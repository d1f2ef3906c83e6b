"""The targets that run the switch program: their names and capabilities.

Callers ask for a capability rather than for a target by name.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass

TARGETS = ("auto", "ebpf", "bmv2")
"""Values of `--target` for a live fabric; `auto` selects one of the others."""
BMV2_PROGRAM = "simple_switch_grpc"
"""BMv2's program, the reference target."""
PORT_DOWN_HALTS = "BMv2 stops forwarding when an interface of its own goes down"
"""Why a port must not go down where `Capabilities.ports_can_go_down` is false."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The properties of a target, so that no caller needs to know its name or class."""

    process_per_switch: bool
    """Each switch is a separate process: it may end by itself, and has another pid after a restart."""
    forwards_in_kernel: bool
    """The kernel forwards; the target's processes only program it, so their CPU time carries no frame."""
    ports_can_go_down: bool
    """A switch goes on forwarding when one of its interfaces goes down."""
    takes_frames_first: bool
    """A switch gets a frame before any program at the interface's ingress.

    Longer links delay frames at egress.
    """
    one_clock: bool
    """Switches stamp frames with CLOCK_MONOTONIC, so that stamps of several switches can be compared."""
    stamps_kill: bool
    """`kill` returns stamps of the switch itself, taken around the moment; else those of the call."""


CAPABILITIES: Mapping[str, Capabilities] = {
    "ebpf": Capabilities(
        process_per_switch=False,
        forwards_in_kernel=True,
        ports_can_go_down=True,
        takes_frames_first=False,
        one_clock=True,
        stamps_kill=True,
    ),
    "bmv2": Capabilities(
        process_per_switch=True,
        forwards_in_kernel=False,
        ports_can_go_down=False,
        takes_frames_first=True,
        one_clock=False,
        stamps_kill=False,
    ),
}
"""By a target's name."""
NO_TARGET = Capabilities(
    process_per_switch=False,
    forwards_in_kernel=True,
    ports_can_go_down=True,
    takes_frames_first=False,
    one_clock=False,
    stamps_kill=False,
)
"""Of a fabric without our switches: routers, or nothing."""


def capabilities_of(name: str) -> Capabilities:
    """Return the capabilities of a target by its name; those of NO_TARGET for any other name."""
    return CAPABILITIES.get(name, NO_TARGET)


def target_name(choice: str) -> str:
    """Return the target of a choice: `auto` is bmv2 if simple_switch_grpc is on PATH, else ebpf."""
    if choice != "auto":
        return choice
    return "bmv2" if shutil.which(BMV2_PROGRAM) else "ebpf"
