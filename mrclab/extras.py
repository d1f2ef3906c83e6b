"""The extras of the package: which installs a Python module that a command lacks."""

from __future__ import annotations

from mrclab.linux.errors import MachineError

EXTRAS = {
    "testbed": ("finsy", "google", "grpc", "grpc_status", "llvmlite", "mininet", "pyroute2"),
    "live": ("prometheus_client", "starlette", "uvicorn"),
    "labs": ("hypothesis", "pandas"),
    "sweep": ("distributed",),
    "training": ("jax",),
}
"""By the extra's name, the top-level modules that it installs."""


def missing_extra(command: str, error: Exception) -> MachineError | None:
    """Return the error to report if a command failed for want of an extra; None for any other error."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    top = (error.name or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if top in modules:
            wanted = f"live,{extra}" if command == "live" and extra != "live" else extra
            return MachineError(f"mrclab {command} needs Python's '{top}'", f"pip install 'mrclab[{wanted}]'")
    return None
