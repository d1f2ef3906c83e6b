"""The rules for imports between packages, for packages without input or output, and for sizes of modules.

`lint-imports` (pyproject.toml) also checks the order of packages, and that no imports form a circle.

The rules are checked on the project's sources. Each rule is also given a small project that breaks it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.support import structure
from tests.support.paths import ROOT
from tests.support.structure import MAX_LINES, MAX_MODULES, Sources

RULES: dict[str, Callable[[Sources], list[str]]] = {
    "order": structure.order_breaks,
    "rooms": structure.unknown_rooms,
    "names": structure.second_names,
    "purity": structure.impurities,
    "length": structure.too_long,
    "width": structure.too_wide,
}

EXCEPTIONS = {
    # This loader lets Python find the modules that mypyc compiled.
    "mrclab.hosts.rdma imports mrclab.hosts.compiled.prefer",
    "mrclab.hosts.mrc imports mrclab.hosts.compiled.prefer",
    "mrclab.hosts.mrc.evs imports mrclab.hosts.compiled.prefer",
    "mrclab.hosts.mrc.sending imports mrclab.hosts.compiled.prefer",
    "mrclab.simulator imports mrclab.hosts.compiled.prefer",
    # This program writes the diagram of EV states into a page of docs.
    "mrclab.hosts.mrc.evs.ev_diagram imports pathlib.Path",
    "mrclab.hosts.mrc.evs.ev_diagram imports sys",
    # This module reads the files of topologies; other modules get their text.
    "mrclab.topologies.shipped imports pathlib.Path",
}

NOT_YET: set[str] = set()
"""Known violations that are not corrected yet. Never add one."""


@pytest.fixture(scope="module")
def project() -> dict[str, str]:
    folders = [*structure.RANK, "benchmarks", "tests"]
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


@pytest.mark.parametrize("rule", RULES)
def test_the_project_keeps_the_rule(rule: str, project: dict[str, str]) -> None:
    assert set(RULES[rule](project)) <= EXCEPTIONS | NOT_YET


def test_every_exception_is_one_still(project: dict[str, str]) -> None:
    assert {fault for rule in RULES.values() for fault in rule(project)} >= EXCEPTIONS | NOT_YET


@pytest.mark.parametrize("rule", RULES)
def test_a_project_without_faults_keeps_the_rule(rule: str) -> None:
    good = {
        "linux/__init__.py": "",
        "linux/errors.py": "class InputError(Exception): ...",
        "topologies/__init__.py": "from mrclab.topologies.model import Fabric",
        "topologies/model.py": "import random\nfrom mrclab.linux.errors import InputError\nR = random.Random",
        "hosts/__init__.py": "",
        "hosts/agent.py": "import socket\nfrom mrclab.topologies import Fabric",
        "mrclab/__init__.py": "",
        "mrclab/cli.py": "def f():\n    from mrclab.hosts import agent\n    from mrclab.linux import errors",
        "benchmarks/one.py": "from tests.support.kit import K\nfrom mrclab.hosts.agent import A",
        "tests/support/kit.py": "from mrclab.hosts import agent",
        "tests/test_one.py": "from benchmarks import one\nfrom tests.support.kit import K",
    }
    assert RULES[rule](good) == []


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        (
            "linux/a.py",
            "from mrclab.hosts.b import C",
            "mrclab.linux.a imports mrclab.hosts.b.C: hosts comes after linux",
        ),
        ("hosts/a.py", "import mrclab.cli", "mrclab.hosts.a imports mrclab.cli: mrclab comes after hosts"),
        (
            "hosts/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from mrclab.testbed.lab import Lab",
            "mrclab.hosts.a imports mrclab.testbed.lab.Lab: testbed comes after hosts",
        ),
        (
            "scale/a.py",
            "def f():\n    from mrclab.exercises import load",
            "mrclab.scale.a imports mrclab.exercises.load: exercises comes after scale",
        ),
        ("mrclab/a.py", "from tests.support import b", "mrclab.a imports tests.support.b, of the tests"),
        (
            "benchmarks/a.py",
            "from tests.hosts import test_b",
            "benchmarks.a imports tests.hosts.test_b, of the tests",
        ),
        (
            "hosts/a.py",
            "from benchmarks.kit import b",
            "mrclab.hosts.a imports benchmarks.kit.b, of the benchmarks",
        ),
        (
            "tests/support/a.py",
            "from tests.hosts.conftest import b",
            "tests.support.a imports tests.hosts.conftest.b: support comes before the tests",
        ),
    ],
)
def test_an_import_against_the_order_is_found(path: str, source: str, fault: str) -> None:
    assert structure.order_breaks({path: source}) == [fault]


def test_a_package_without_a_place_in_the_order_is_found() -> None:
    assert structure.unknown_rooms({"attic/__init__.py": ""}) == ["attic is not in the order of packages"]


@pytest.mark.parametrize(
    "line", ["from hosts.b import C", "import hosts.b", "def f():\n    from hosts import b"]
)
def test_an_import_of_a_room_without_the_package_is_found(line: str) -> None:
    target = "hosts" if line.endswith("hosts import b") else "hosts.b"
    fault = f"mrclab.linux.a imports {target}: the name is mrclab.{target}"
    assert structure.second_names({"linux/a.py": line}) == [fault]


def test_each_room_has_its_link_in_the_package() -> None:
    rooms = {room for room in structure.RANK if room != "mrclab"}
    links = {
        path.name: path.readlink().as_posix() for path in (ROOT / "mrclab").iterdir() if path.is_symlink()
    }
    assert links == {room: f"../{room}" for room in rooms}


NO_IMPORT = re.compile(
    rf"-m (?!mrclab)({'|'.join(room for room in structure.RANK if room != 'mrclab')})\.[a-z]"
)


def test_commands_in_pages_and_build_files_have_the_package_in_their_names() -> None:
    files = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("labs/**/*.md"), ROOT / "README.md", ROOT / "Makefile"]
    files += [
        ROOT / "Dockerfile",
        ROOT / ".ci" / "run",
        *ROOT.glob("tools/*.sh"),
        *ROOT.glob("labs/*/lab.yaml"),
    ]
    found = [path.name for path in files if NO_IMPORT.search(path.read_text(encoding="utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("import socket", "imports socket"),
        ("def f():\n    from time import monotonic_ns", "imports time.monotonic_ns"),
        ("import os.path", "imports os.path"),
        ("from mrclab.linux import bpf", "imports mrclab.linux.bpf"),
        ("from mrclab.hosts.agent import Agent", "imports mrclab.hosts.agent.Agent"),
        ("from random import SystemRandom", "imports random.SystemRandom"),
        ("import random\nx = random.random()", "uses random.random"),
        ("text = open('x').read()", "calls open"),
    ],
)
@pytest.mark.parametrize("package", structure.PURE)
def test_input_and_output_in_a_pure_package_are_found(package: str, source: str, fault: str) -> None:
    path = package.removeprefix("mrclab.").replace(".", "/") + "/a.py"
    assert structure.impurities({path: source}) == [f"{package}.a {fault}"]
    assert structure.impurities({"hosts/a.py": source}) == []


def test_a_long_module_without_a_reason_is_found() -> None:
    lines = "x = 1\n" * MAX_LINES
    fault = ["hosts/a.py is longer than 500 lines"]
    assert structure.too_long({"hosts/a.py": lines}) == []
    assert structure.too_long({"hosts/a.py": lines + "x = 1\n"}) == fault
    assert structure.too_long({"hosts/a.py": '"""A. Longer than 500 lines: one table."""\n' + lines}) == []
    assert structure.too_long({"hosts/a.py": '"""A. Longer than 500 lines: """\n' + lines}) == fault


def test_a_wide_folder_without_a_reason_is_found() -> None:
    folder = {f"hosts/m{number}.py": "" for number in range(MAX_MODULES)}
    assert structure.too_wide({**folder, "hosts/__init__.py": "", "hosts/sub/a.py": ""}) == []
    folder["hosts/one_more.py"] = ""
    assert structure.too_wide(folder) == ["hosts has more than 16 modules"]
    reason = '"""H. More than 16 modules: one for each."""'
    assert structure.too_wide({**folder, "hosts/__init__.py": reason}) == []
