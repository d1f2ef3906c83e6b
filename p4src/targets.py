"""The targets that run the switch program: their names and capabilities.

Other modules check a capability instead of comparing the name of a target.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass

TARGETS = ("auto", "ebpf", "bmv2")
"""The values of `--target` for a live fabric. `auto` selects `bmv2` or `ebpf`."""
BMV2_PROGRAM = "simple_switch_grpc"
"""The program of BMv2, the reference switch."""
PORT_DOWN_HALTS = "BMv2 stops forwarding when an interface of its own goes down"
"""The text of error messages for targets without the capability `ports_can_go_down`."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The properties in which targets differ."""

    process_per_switch: bool
    """Each switch is a separate process, which can crash alone and has a new pid after a restart."""
    forwards_in_kernel: bool
    """The kernel forwards frames. The target's processes only configure the kernel."""
    ports_can_go_down: bool
    """A switch continues to forward if one of its interfaces goes down."""
    takes_frames_first: bool
    """A switch receives a frame before any other program at the interface's ingress.

    So to give a link a delay, a program must delay its frames at egress.
    """
    one_clock: bool
    """All switches stamp frames with CLOCK_MONOTONIC, so stamps of different switches can be compared."""
    stamps_kill: bool
    """The switch itself takes time stamps when `kill` stops it. If false, the caller of `kill` takes them."""


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
"""The capabilities of each target, by its name."""
NO_TARGET = Capabilities(
    process_per_switch=False,
    forwards_in_kernel=True,
    ports_can_go_down=True,
    takes_frames_first=False,
    one_clock=False,
    stamps_kill=False,
)
"""The capabilities for a fabric without P4 switches, such as one of routers."""


def capabilities_of(name: str) -> Capabilities:
    """Return the capabilities of a target by its name. For any other name, return NO_TARGET."""
    return CAPABILITIES.get(name, NO_TARGET)


def target_name(choice: str) -> str:
    """Return the target's name. `auto` means bmv2 if simple_switch_grpc is on PATH, else ebpf."""
    if choice != "auto":
        return choice
    return "bmv2" if shutil.which(BMV2_PROGRAM) else "ebpf"
