"""Compile the transports' cores and their drivers with mypyc, from the same source that plain Python runs.

    python -m mrclab.hosts.compile        compile the cores, if needed

A build is stored in the virtual environment, in a folder named by the hash of its source. `prefer` looks for
the hash of the present source. So if you edit a file, the next process runs your version in pure Python until
you compile it again. Without a compiler everything runs in pure Python, but slower. With MRCLAB_PURE=1 in the
environment, everything runs in pure Python.

All modules are compiled as one mypyc group, so that calls between packages are native calls, which are fast.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, MutableSequence
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

PURE_VARIABLE = "MRCLAB_PURE"
COMPILED: Mapping[str, tuple[str, ...]] = {
    "mrclab.hosts.rdma": ("endpoint", "events", "frames", "memory", "paths", "rtt", "scheduler"),
    "mrclab.hosts.mrc": (
        *("codec", "config", "congestion", "connection", "endpoint", "events", "nscc", "operations"),
        *("outstanding", "packets", "port_status", "queue_pair", "received", "responder", "wire"),
    ),
    "mrclab.hosts.mrc.evs": ("ev", "ev_set"),
    "mrclab.hosts.mrc.sending": ("answers", "losses", "recovery", "requester"),
    "mrclab.hosts.nic": ("device", "ports"),
    "mrclab.hosts.streams": ("rounds", "stream"),
    "mrclab.simulator": ("clock", "flow_control", "nic", "port", "served", "switch"),
}
"""The compiled modules, by package: all code that runs for every packet."""
CONSTANTS = "mrclab/p4src/contract.py"
"""A module whose constants are compiled into the modules above. The module itself is not compiled."""
DIGITS = 16
"""Number of hexadecimal digits of the hash that name a build's folder."""
KEPT = 4
"""Number of older builds to keep, so that a switch to another git branch needs no new compilation."""
_SOURCE = Path(__file__).parents[2]
"""The folder that holds the package mrclab."""
_RECIPE = """\
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from mypyc.build import mypycify
from setuptools import setup
from distutils.ccompiler import CCompiler
one_by_one = CCompiler.compile
def compile(self, sources, *args, **options):
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        made = pool.map(lambda source: one_by_one(self, [source], *args, **options), sources)
        return [file for files in made for file in files]
CCompiler.compile = compile  # most sources are of one extension, which setuptools compiles one after another
sources = ["--strict", "--ignore-missing-imports", *sys.argv[2:]]
extensions = mypycify(sources, group_name="mrclab_core", multi_file=True)
build = ["build_ext", "--build-lib", sys.argv[1], "--parallel", "2"]
setup(name="core", script_args=build, ext_modules=extensions)
"""


class CompileError(RuntimeError):
    """The core cannot be compiled here. The error's text is one line and names the remedy."""


def directory() -> Path:
    """Return the folder for the build of the present source. It exists only if that source is compiled."""
    digest = hashlib.sha256(f"{sysconfig.get_config_var('SOABI')}\n{_RECIPE}".encode())
    for file in sources():
        digest.update((_SOURCE / file).read_bytes())
    digest.update((_SOURCE / CONSTANTS).read_bytes())
    return _builds() / digest.hexdigest()[:DIGITS]


def sources() -> list[str]:
    """Return the source files to compile, relative to the folder that holds the package mrclab."""
    return [str(_folder(package) / f"{name}.py") for package, names in COMPILED.items() for name in names]


def _folder(package: str) -> Path:
    """Return the folder of a package, relative to `_SOURCE`."""
    return Path(*package.split("."))


def _builds() -> Path:
    return Path(sys.prefix) / "mrclab-core"


def prefer(path: MutableSequence[str], package: str) -> None:
    """Let Python import a package's compiled modules if up to date. ``path`` is the package's `__path__`."""
    if not wanted() or not (built := directory()).is_dir():
        return
    # mypyc builds one shared library for all modules, and a small stub for each module. A stub imports the
    # library by name, so the library must be in sys.modules first.
    for library in built.glob("*.so"):
        spec = spec_from_file_location(library.name.partition(".")[0], library)
        if spec is not None and spec.name not in sys.modules:
            sys.modules[spec.name] = module_from_spec(spec)
    path.insert(0, str(built.joinpath(*package.split("."))))


def wanted() -> bool:
    """Return True unless the variable MRCLAB_PURE forbids compiled modules."""
    return os.environ.get(PURE_VARIABLE, "") in ("", "0")


def in_use() -> bool:
    """Return whether this process runs the compiled core."""
    frames = import_module("mrclab.hosts.rdma.frames")  # imported only here: that package imports this module
    return not str(frames.__file__).endswith(".py")


def describe() -> str:
    """Return one line: whether this process runs compiled or pure Python, and how to compile."""
    if in_use():
        return "compiled"
    if not wanted():
        return f"pure Python: {PURE_VARIABLE} is set"
    if _builds().is_dir() and any(path.is_dir() and len(path.name) == DIGITS for path in _builds().iterdir()):
        return "pure Python: its source changed since it was compiled ('make compile' compiles it again)"
    return "pure Python: not compiled ('make compile' does it where gcc and python3-dev are installed)"


def build() -> Path:
    """Compile the source if necessary. Return the build's folder. Raise CompileError if this fails."""
    target = directory()
    if target.is_dir():
        return target
    if sys.platform == "win32":
        raise CompileError("compiling for Windows is not supported")
    if shutil.which("gcc") is None or not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise CompileError("no C compiler for Python modules here: install gcc and python3-dev")
    import fcntl  # this module exists on Unix only

    print("mrclab: compiling the protocol cores, which takes half a minute", file=sys.stderr)
    try:
        _builds().mkdir(exist_ok=True)
        with (_builds() / ".lock").open("w") as lock, tempfile.TemporaryDirectory(dir=_builds()) as folder:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.is_dir():
                made = _compile(Path(folder))
                made.rename(target)
                _forget_old()
    except OSError as error:
        raise CompileError(f"cannot write to {_builds()}: {error.strerror}") from None
    return target


def _compile(folder: Path) -> Path:
    # Compile a copy. Otherwise an edit during the build would be stored under the hash of the earlier source.
    for package in ("mrclab", "mrclab.hosts", *COMPILED, "mrclab.p4src"):
        (folder / _folder(package)).mkdir(parents=True, exist_ok=True)
        (folder / _folder(package) / "__init__.py").touch()
    files = sources()
    for file in (*files, CONSTANTS):
        shutil.copy(_SOURCE / file, folder / file)
    done = subprocess.run(
        [sys.executable, "-c", _RECIPE, "made", *files],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": "", "CFLAGS": "-O2 -g0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        log = _builds() / "build.log"
        log.write_text(done.stdout + done.stderr)
        if "No module named 'mypyc'" in done.stderr:
            raise CompileError("mypyc is missing: 'pip install mypy'")
        raise CompileError(f"compiling failed, see {log}")
    return folder / "made"


def _forget_old() -> None:
    builds = [path for path in _builds().iterdir() if path.is_dir() and len(path.name) == DIGITS]
    for path in sorted(builds, key=lambda path: path.stat().st_mtime)[: -KEPT - 1]:
        shutil.rmtree(path, ignore_errors=True)


def main() -> int:
    """Compile the cores. If that fails, print the reason in one line. Return the exit status."""
    if not wanted():
        return 0
    try:
        build()
    except CompileError as error:
        print(f"mrclab: the protocol cores stay pure Python, which is slower: {error}", file=sys.stderr)
        return 3
    return 0
