"""Checks of the imports and sizes of the project's modules, as pure functions over sources.

A project is a mapping of paths to sources: ``{"hosts/mrc/psn.py": "...", ...}``. Each check returns the
violations of its rule, one line each, sorted. An empty list means that there are none.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import PurePosixPath

Sources = Mapping[str, str]

ROOMS = (
    ("p4src",),
    ("linux",),
    ("topologies",),
    ("faults",),
    ("switches",),
    ("controller",),
    ("hosts",),
    ("native",),
    ("simulator",),
    ("testbed",),
    ("experiments",),
    ("scale",),
    ("labs", "exercises"),
    ("mrclab",),
)
"""The packages in their order. Each package imports only from itself and from earlier packages.

All packages except the last are top-level folders, with links in mrclab: ``hosts`` is ``mrclab.hosts``.
"""
RANK = {room: rank for rank, rooms in enumerate(ROOMS) for room in rooms}

PURE = tuple(
    f"mrclab.{name}"
    for name in ("topologies", "faults", "hosts.rdma", "hosts.mrc", "hosts.roce", "simulator", "scale")
)
"""Packages without I/O. Their functions get time and randomness as arguments."""
VALUES = (
    "mrclab.linux.errors",
    "mrclab.p4src",
    "mrclab.controller.queues",
    "mrclab.experiments.measure.life",
)
"""Modules with only values and arithmetic. Pure packages may import them from other packages."""
IO_MODULES = frozenset(
    [
        "asyncio",
        "concurrent",
        "ctypes",
        "datetime",
        "fcntl",
        "grpc",
        "io",
        "mmap",
        "multiprocessing",
        "os",
        "pathlib",
        "psutil",
        "pyroute2",
        "resource",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
    ]
)

MAX_LINES = 500
MAX_MODULES = 16
LONG_REASON = f"Longer than {MAX_LINES} lines"
WIDE_REASON = f"More than {MAX_MODULES} modules"


def module_name(path: str) -> str:
    """Return the dotted name of the module at a path. An ``__init__.py`` has the name of its package."""
    parts = PurePosixPath(path).with_suffix("").parts
    if parts[0] in RANK and parts[0] != "mrclab":
        parts = ("mrclab", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """Return a module's package in mrclab: ``hosts`` for ``mrclab.hosts.agent``.

    For other modules, return the part of the name before the first dot.
    """
    top, _, rest = module.partition(".")
    room = rest.partition(".")[0]
    return room if top == "mrclab" and room in RANK else top


def is_in(module: str, packages: str | Iterable[str]) -> bool:
    """Return True if a module is one of these packages or is inside one of them."""
    names = [packages] if isinstance(packages, str) else packages
    return any(module == name or module.startswith(f"{name}.") for name in names)


@cache
def imports_of(path: str, source: str) -> tuple[tuple[str, str | None], ...]:
    """Return each import in the source: the module, and the imported name, or None for the whole module."""
    package = module_name(path).split(".")
    if not path.endswith("__init__.py"):
        package = package[:-1]
    found: list[tuple[str, str | None]] = []
    for node in ast.walk(ast.parse(source, path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.append((alias.name, None))
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                found.append((module, alias.name))
    return tuple(found)


def order_breaks(sources: Sources) -> list[str]:
    """Find imports that violate the order of packages (``ROOMS``), benchmarks and tests."""
    found = set()
    for path, source in sources.items():
        module = module_name(path)
        room = room_of(module)
        for target, name in imports_of(path, source):
            full = f"{target}.{name}" if name else target
            other = room_of(full)
            if room in RANK and other in RANK and RANK[other] > RANK[room]:
                found.add(f"{module} imports {full}: {other} comes after {room}")
            elif room != "tests" and other == "tests":
                if room != "benchmarks" or not is_in(full, "tests.support"):
                    found.add(f"{module} imports {full}, of the tests")
            elif room not in ("tests", "benchmarks") and other == "benchmarks":
                found.add(f"{module} imports {full}, of the benchmarks")
            elif is_in(module, "tests.support") and other == "tests" and not is_in(full, "tests.support"):
                found.add(f"{module} imports {full}: support comes before the tests")
    return sorted(found)


def unknown_rooms(sources: Sources) -> list[str]:
    """Find packages that are missing from the order of packages (``ROOMS``)."""
    known = {*RANK, "tests", "benchmarks"}
    rooms = {path.split("/")[0] for path in sources if "/" in path and path.endswith("__init__.py")}
    return sorted(f"{room} is not in the order of packages" for room in rooms - known)


def second_names(sources: Sources) -> list[str]:
    """Find imports of a package without ``mrclab.``: Python would load its modules a second time."""
    return sorted(
        f"{module_name(path)} imports {target}: the name is mrclab.{target}"
        for path, source in sources.items()
        for target, _ in imports_of(path, source)
        if target.partition(".")[0] in RANK and target.partition(".")[0] != "mrclab"
    )


def impurities(sources: Sources) -> list[str]:
    """Find forbidden imports in pure packages: modules for I/O, clocks, unseeded randomness, or files.

    Among mrclab's modules, a pure package may import only pure packages and `VALUES`.
    """
    found = set()
    for path, source in sources.items():
        module = module_name(path)
        if not is_in(module, PURE):
            continue
        for target, name in imports_of(path, source):
            top = target.split(".")[0]
            full = f"{target}.{name}" if name else target
            ours = top == "mrclab" and not is_in(full, (*PURE, *VALUES))
            seeded = target != "random" or name in (None, "Random")
            if target != "__future__" and (top in IO_MODULES or ours or not seeded):
                found.add(f"{module} imports {full}")
        for node in ast.walk(ast.parse(source, path)):
            match node:
                case ast.Attribute(value=ast.Name(id="random"), attr=name) if name != "Random":
                    if ("random", None) in imports_of(path, source):
                        found.add(f"{module} uses random.{name}")
                case ast.Call(func=ast.Name(id="open" | "print" | "input" as name)):
                    found.add(f"{module} calls {name}")
                case _:
                    pass
    return sorted(found)


def too_long(sources: Sources) -> list[str]:
    """Find modules with too many lines whose docstring gives no reason (``Longer than 500 lines: ...``)."""
    return sorted(
        f"{path} is longer than {MAX_LINES} lines"
        for path, source in sources.items()
        if len(source.splitlines()) > MAX_LINES and not _says(source, LONG_REASON)
    )


def too_wide(sources: Sources) -> list[str]:
    """Find folders with too many modules and no reason in the docstring of ``__init__.py``.

    A reason begins with ``More than 16 modules:``.
    """
    folders: dict[str, int] = defaultdict(int)
    for path in sources:
        folder = PurePosixPath(path)
        if folder.name != "__init__.py":
            folders[str(folder.parent)] += 1
    return sorted(
        f"{folder} has more than {MAX_MODULES} modules"
        for folder, count in folders.items()
        if count > MAX_MODULES and not _says(sources.get(f"{folder}/__init__.py", ""), WIDE_REASON)
    )


def _says(source: str, reason: str) -> bool:
    """Return True if a module's docstring has the text ``reason``, a colon and more words."""
    _, found, words = (ast.get_docstring(ast.parse(source)) or "").partition(f"{reason}: ")
    return bool(found and words.strip())
