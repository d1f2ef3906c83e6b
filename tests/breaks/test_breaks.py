"""The breaks fit the sources and the conformance table, and the program that makes them reports correctly.

`python -m tests.breaks` makes all breaks. These tests make a few breaks, or all if MRC_BREAKS=all is set.
"""

import os
import textwrap
from collections import defaultdict

import pytest

from tests.breaks.run import Tree, run, unbroken
from tests.breaks.table import Break, breaks
from tests.support.conformance import nodes, rows
from tests.support.paths import ROOT

ALL = breaks()
SOURCES = {broken.file: (ROOT / broken.file).read_text(encoding="utf-8") for broken in ALL}
EVERY = os.environ.get("MRC_BREAKS") == "all"


def test_every_break_fits_the_sources():
    """The text to replace occurs once. This quick test shows which breaks a change of the sources affects."""
    unfit = []
    for broken in ALL:
        try:
            broken.apply(SOURCES[broken.file])
        except ValueError as error:
            unfit.append(str(error))
    assert unfit == []


@pytest.mark.slow
def test_every_break_is_python():
    for broken in ALL:
        compile(broken.apply(SOURCES[broken.file]), broken.file, "exec")


def test_no_break_is_there_twice():
    assert len({(broken.row, broken.file, broken.old, broken.new) for broken in ALL}) == len(ALL)
    assert len({(broken.row, broken.what) for broken in ALL}) == len(ALL)


def test_every_break_is_of_one_row():
    table = rows()
    for broken in ALL:
        assert len([row for row in table if row.item.startswith(broken.row)]) == 1, broken.row


@pytest.mark.parametrize("row", [pytest.param(row, id=row.item[:50]) for row in rows()])
def test_every_test_of_a_row_has_a_break_to_find(row):
    found = {name for broken in ALL if row.item.startswith(broken.row) for name in broken.tests}
    assert found == set(row.tests)
    assert found <= set(nodes())
    assert found or "not done: " in row.where or row.where == "the switches' part"


# Tests of the program that makes the breaks


PROJECT = {
    "mrclab/__init__.py": "",
    "hosts/__init__.py": "",
    "hosts/core.py": """\
        def double(x):
            return 2 * x

        def half(x):
            return x // 2
        """,
    "tests/test_core.py": """\
        from mrclab.hosts.core import double, half

        def test_double():
            assert double(2) == 4

        def test_half():
            assert half(4) == 2

        def test_unpacking():
            (one,) = [n for n in range(9) if double(n) == 4]
        """,
}
NODES = {name: f"tests/test_core.py::{name}" for name in ("test_double", "test_half", "test_unpacking")}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return the path of a small project that has the plugin that reports outcomes."""
    root = tmp_path_factory.mktemp("project")
    for name, text in PROJECT.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(textwrap.dedent(text))
    (root / "mrclab" / "hosts").symlink_to("../hosts")
    (root / "tests" / "breaks").mkdir()
    (root / "tests" / "breaks" / "outcomes.py").write_bytes((ROOT / "tests/breaks/outcomes.py").read_bytes())
    return root


def broken(old, new, *tests):
    return Break(row="1", what="something", file="hosts/core.py", old=old, new=new, tests=tests)


@pytest.mark.slow
def test_what_comes_of_a_break(project):
    made = [
        broken("2 * x", "3 * x", "test_double", "test_half", "test_unpacking"),
        broken("2 * x", "x[2]", "test_double"),
        broken("def half", "def third", "test_half"),
        broken("x // 2", "x / 2", "test_half"),
    ]
    first, second, third, fourth = run(project, NODES, made, jobs=2)
    assert first.outcomes == {"test_double": "found", "test_half": "passed", "test_unpacking": "found"}
    assert not first.found, "all of its tests have to find it"
    assert second.outcomes["test_double"].startswith("TypeError"), "the core failed, not an assertion"
    assert third.outcomes == {"test_half": "not run"}, "no test could be imported"
    assert fourth.outcomes == {"test_half": "passed"}
    assert not second.found | third.found | fourth.found
    assert unbroken(project, NODES, NODES) == {}


@pytest.mark.slow
def test_a_tree_is_whole_again_after_a_break(project, tmp_path):
    tree = Tree(project, tmp_path / "copy")
    assert tree.run_broken(NODES, broken("2 * x", "x * 4", "test_double")).found
    assert tree.run(NODES, NODES) == dict.fromkeys(NODES, "passed")
    with pytest.raises(ValueError, match="occurs 2 times"):
        tree.run_broken(NODES, broken("return", "yield", "test_double"))
    assert tree.run(NODES, NODES) == dict.fromkeys(NODES, "passed")


def few():
    """Return one break of each of several sources."""
    by_file = defaultdict(list)
    for one in ALL:
        by_file[one.file].append(one)
    return [by_file[name][0] for name in sorted(by_file)[::5]]


@pytest.mark.slow
@pytest.mark.timeout(3600 if EVERY else 900)
def test_breaks_are_found():
    made = ALL if EVERY else few()
    assert made
    names = {name for one in made for name in one.tests}
    assert unbroken(ROOT, nodes(), sorted(names)) == {}
    jobs = os.cpu_count() or 1 if EVERY else 1
    survivors = [verdict for verdict in run(ROOT, nodes(), made, jobs) if not verdict.found]
    assert [(v.broken.row, v.broken.what, dict(v.outcomes)) for v in survivors] == []
