"""The virtual environment for p4runtime-shell, which needs an older protobuf than mrclab.

As a program, this module creates the environment. It imports only the standard library.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

CACHE_VARIABLE = "MRCLAB_CACHE"
# The versions for which p4runtime-shell 0.0.6 was made; only grpcio may be newer.
PINS = (
    "p4runtime-shell==0.0.6",
    "p4runtime==1.4.1",
    "protobuf==3.20.3",
    "ipython==7.31.1",
    "jedi==0.17.2",
    "grpcio>=1.60,<2",
    "setuptools<81",  # later versions lack pkg_resources, which IPython 7 imports
)


class ShellEnvironmentError(RuntimeError):
    """The environment cannot be made. The message is one line and contains advice."""


def environment_directory() -> Path:
    """Return the environment's directory. Its name has a hash of the pinned versions.

    If MRCLAB_CACHE is set, the directory is in MRCLAB_CACHE, otherwise in the user's cache directory.
    """
    cache = os.environ.get(CACHE_VARIABLE)
    root = (
        Path(cache) if cache else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mrclab"
    )
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256("\n".join((version, *PINS)).encode()).hexdigest()[:12]
    return root / f"p4runtime-shell-{digest}"


def shell_python() -> Path:
    """Return the environment's Python. The first call makes the environment (some 15 s, 100 MB, needs PyPI).

    If several processes call this at the same time, one process makes the environment and the others wait.
    Raise ShellEnvironmentError if the environment cannot be made.
    """
    directory = environment_directory()
    python = directory / "bin" / "python"
    if (directory / ".ready").exists():
        return python
    import fcntl  # exists on Unix only

    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        lock = directory.with_suffix(".lock").open("w")
    except OSError as error:
        raise ShellEnvironmentError(f"cannot write to {directory.parent}: {error.strerror}") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / ".ready").exists():
            _make(directory, python)
    return python


def _make(directory: Path, python: Path) -> None:
    print(f"making an environment for p4runtime-shell in {directory}", file=sys.stderr)
    try:
        venv.create(directory, with_pip=True, clear=True)
    except (OSError, subprocess.CalledProcessError) as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise ShellEnvironmentError(
            f"cannot make {directory}: {error} (is python3-venv installed?)"
        ) from None
    done = subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PINS],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        shutil.rmtree(directory, ignore_errors=True)
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
        raise ShellEnvironmentError(
            f"p4runtime-shell cannot be installed ({lines[-1]}): is this machine's package index reachable?"
        )
    (directory / ".ready").touch()


if __name__ == "__main__":
    shell_python()
