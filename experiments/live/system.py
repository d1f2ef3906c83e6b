"""A description of the machine and the software, which every result contains."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from mrclab.hosts import compiled
from mrclab.linux.scheduling import may_keep_cpus_awake, usable_cpus

_PACKAGES = ("mrclab", "llvmlite", "numpy", "finsy", "grpcio")


def describe_system(p4_json: Path | None = None, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the machine and the software, as in ``system`` of `result.json`.

    Unknown values are None. ``p4_json`` is the compiled switch program, which is identified by its SHA-256.
    ``extra`` has further values, such as the version of the target. An extra value replaces a value of the
    same name.
    """
    description: dict[str, Any] = {
        "cpu_model": _cpu_model(),
        "cpus": os.cpu_count(),
        "cpus_usable": usable_cpus(),
        "memory_bytes": psutil.virtual_memory().total,
        "machine": platform.machine(),
        "kernel": platform.release(),
        "distribution": _distribution(),
        "virtual": _virtual(),
        "clock_source": _read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "cpus_kept_awake": may_keep_cpus_awake(),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "python": platform.python_version(),
        "mrc_core": compiled.describe(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "git": _git(Path(__file__).resolve().parent),
        "p4_json_sha256": _sha256(p4_json),
        "tcpdump": _first_line(["tcpdump", "--version"]),
    }
    return description | dict(extra or {})


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _field(text: str | None, *keys: str) -> str | None:
    for line in (text or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in keys:
            return value.strip()
    return None


def _cpu_model() -> str | None:
    # On arm64 /proc/cpuinfo has no model name, only numbers of the implementer and the part.
    return _field(_read("/proc/cpuinfo"), "model name", "Model", "Processor") or platform.processor() or None


def _virtual() -> bool | None:
    """Return True if the CPU's flags show a hypervisor; None if this kind of CPU has no flags."""
    flags = _field(_read("/proc/cpuinfo"), "flags")
    return None if flags is None else "hypervisor" in flags.split()


def _distribution() -> str | None:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:  # not Linux
        return platform.platform(terse=True)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _sha256(path: Path | None) -> str | None:
    if path is None or not path.is_file():
        return None
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _run(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (done.stdout or done.stderr) if done.returncode == 0 else None


def _first_line(command: list[str]) -> str | None:
    text = (_run(command) or "").strip()
    return text.splitlines()[0] if text else None


def _git(directory: Path) -> dict[str, Any] | None:
    """Return the commit, and whether tracked files differ from it; None outside a work tree."""
    git = ["git", "-c", "safe.directory=*", "-C", str(directory)]
    commit = _first_line([*git, "rev-parse", "HEAD"])
    if commit is None:
        return None
    changes = _run([*git, "status", "--porcelain", "--untracked-files=no"])
    return {"commit": commit, "dirty": bool((changes or "").strip())}


if __name__ == "__main__":
    import json

    json.dump(describe_system(), sys.stdout, indent=2)
