"""Run mrclab as if on Windows or macOS, as far as Linux can imitate them, in separate processes.

`become` imitates another system for the modules of this repository only. The modules and names of Python that
the system lacks (according to typeshed) cannot be imported. Packages for Linux only, files under /proc, /sys
and /run, libraries of C, and all programs except Python are missing. On Windows, text has that system's line
ends and encoding unless the code chooses them, and a file cannot be renamed to a name in use.
"""

from __future__ import annotations

import ast
import builtins
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

from tests.support.paths import ROOT

SYSTEMS = ("win32", "darwin")
LINUX_ONLY = frozenset({"mininet", "pyroute2"})
"""Packages that pip installs only on Linux."""
KERNEL_FOLDERS = ("/proc/", "/sys/", "/run/")
CHOSEN_BY = "MRCLAB_TEST_SYSTEM"
_START = """\
import os
from tests.support.other_systems import CHOSEN_BY, become
become(os.environ[CHOSEN_BY])
"""
_NOT_IN_NAMES = re.compile(r'[<>:"|?*\\\x00-\x1f]|[. ]$')
_OF_PYTHON = frozenset({"pathlib", "shutil", "subprocess", "tempfile", "contextlib", "importlib", "ctypes"})
"""Python's modules with which modules of this repository open files and start programs."""


def environment(system: str, folder: Path) -> dict[str, str]:
    """Return an environment in which Python and its children behave as on another system.

    Python imports `sitecustomize` when it starts; this module is written into `folder`.
    """
    (folder / "sitecustomize.py").write_text(_START, encoding="utf-8")
    pipes = {"PYTHONIOENCODING": "cp1252"} if system == "win32" else {}
    return {
        **os.environ,
        **pipes,
        "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))),
        "MRCLAB_PURE": "1",
        CHOSEN_BY: system,
    }


def become(system: str) -> None:
    """Imitate another system for the modules of this repository, until the process ends."""
    real = builtins.__import__

    def import_as_there(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> ModuleType:
        if level or not _ours(globals or {}):
            return real(name, globals, locals, fromlist, level)
        top = name.partition(".")[0]
        if top in LINUX_ONLY or (lacking := missing(top, system)) is None:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        found = real(name, globals, locals, fromlist, level)
        if found.__name__ != top:
            return found
        return _Seen(found, lacking, _DIFFERENT[system].get(top, {}))

    builtins.__import__ = import_as_there
    sys.addaudithook(_refuse)
    if system == "win32":
        _act_as_windows()


class _Seen(ModuleType):
    """A module of Python with only the names that another system has."""

    def __init__(self, module: ModuleType, lacking: frozenset[str], different: dict[str, Any]) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(different)
        self.__dict__["_real"], self.__dict__["_lacking"] = module, lacking

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__["_lacking"]:
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")
        return getattr(self.__dict__["_real"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_real"], name, value)


def _no_library(*_: object, **__: object) -> None:
    raise OSError("no library of C on this system")


_DIFFERENT: dict[str, dict[str, dict[str, Any]]] = {
    "win32": {
        "sys": {"platform": "win32"},
        "os": {"name": "nt", "sep": "\\", "linesep": "\r\n"},
        "ctypes": {"CDLL": _no_library},
    },
    "darwin": {"sys": {"platform": "darwin"}, "ctypes": {"CDLL": _no_library}},
}


@cache
def missing(module: str, system: str) -> frozenset[str] | None:
    """Return the names that a module of Python lacks on a system, or None if the system lacks the module."""
    if module not in sys.stdlib_module_names or (stub := _stub(module)) is None:
        return frozenset()
    text = stub.read_text(encoding="utf-8")
    if "sys.platform" not in text:
        return frozenset()
    body = ast.parse(text).body
    here, there = set(_names(body, "linux")), set(_names(body, system))
    return None if here and not there else frozenset(here - there)


def _stub(module: str) -> Path | None:
    """Return the path of a module's stub in mypy's typeshed, or None if the module has no stub."""
    import mypy

    stubs = Path(mypy.__path__[0]) / "typeshed" / "stdlib"
    found = (stubs / f"{module}.pyi", stubs / module / "__init__.pyi")
    return next((path for path in found if path.exists()), None)


def _names(body: Sequence[ast.stmt], system: str) -> Iterator[str]:
    """Yield the names that a stub defines on a system."""
    given = {"sys": SimpleNamespace(platform=system, version_info=sys.version_info), "TYPE_CHECKING": True}
    for statement in body:
        match statement:
            case ast.If(test=test):
                holds = eval(compile(ast.Expression(test), "", "eval"), given)
                yield from _names(statement.body if holds else statement.orelse, system)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                yield name
            case ast.ImportFrom(names=names):
                yield from (entry.asname for entry in names if entry.asname == entry.name)


def _ours(of: dict[str, Any]) -> bool:
    """Return whether a module with these globals belongs to this repository, and is not one of the tests."""
    file = str(of.get("__file__") or "")
    return file.startswith(f"{ROOT}{os.sep}") and not file.startswith((f"{ROOT}/tests/", f"{ROOT}/."))


def _asked_by_us() -> bool:
    """Return True if a module of this repository opens the file or starts the program."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name != __name__ and name.partition(".")[0] not in _OF_PYTHON:
            return _ours(frame.f_globals)
        frame = frame.f_back
    return False


def _refuse(event: str, of: tuple[Any, ...]) -> None:
    """Raise the error that another system raises for files or programs that exist only on Linux."""
    if event in ("open", "os.listdir", "os.scandir"):
        if str(of[0]).startswith(KERNEL_FOLDERS) and _asked_by_us():
            raise FileNotFoundError(2, "No such file or directory", of[0])
    elif event == "subprocess.Popen":
        program = of[0] or of[1][0]
        if os.fspath(program) != sys.executable and _asked_by_us():
            raise FileNotFoundError(2, "No such file or directory", program)


def _refuse_as_windows(event: str, of: tuple[Any, ...]) -> None:
    """Raise the error that Windows raises if a new file's name is invalid or in use."""
    if event == "os.mkdir" or (event == "open" and of[2] & os.O_CREAT):
        made = of[0]
    elif event == "os.rename":
        made = of[1]
    else:
        return
    if isinstance(made, str | os.PathLike) and _asked_by_us():
        name = os.path.basename(os.fspath(made))
        if _NOT_IN_NAMES.search(name):
            raise OSError(22, "The filename, directory name, or volume label syntax is incorrect", made)


def _act_as_windows() -> None:
    """Make this repository's modules write text and rename files by the rules of Windows."""
    sys.addaudithook(_refuse_as_windows)
    opened, renamed = builtins.open, os.rename

    def open_there(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        if "b" not in mode and _asked_by_us():
            encoding = "cp1252" if encoding in (None, "locale") else encoding
            newline = "\r\n" if newline is None and not mode.startswith("r") else newline
        return opened(file, mode, buffering, encoding, errors, newline, closefd, opener)

    def rename_there(old: Any, new: Any, **options: Any) -> None:
        if os.path.exists(new) and _asked_by_us():
            raise FileExistsError(17, "Cannot create a file when that file already exists", old, None, new)
        renamed(old, new, **options)

    builtins.open = io.open = open_there
    os.rename = rename_there
