"""Which commands need Linux: those on a running fabric."""

from __future__ import annotations

from mrclab.linux.system import require_linux

COMMANDS = (
    *(
        "clean",
        "cli",
        "clustermapper",
        "doctor",
        "down",
        "exec",
        "exercise",
        "perf",
        "probe",
        "restore",
    ),
    *("shell", "status", "up", "watch"),
)
"""`run`, `soak`, `fault`, `lab` and `live` do some of their work anywhere."""


def require_system(command: str) -> None:
    """Raise MachineError if a command cannot work on this system."""
    if command in COMMANDS:
        require_linux(f"mrclab {command}")
