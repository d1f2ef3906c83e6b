"""Breaks fit the sources and the conformance table. The program that makes breaks prints correct reports.

A break is a deliberate error in the sources. `python -m tests.breaks` makes all breaks. These tests make a
few breaks, or all breaks if MRC_BREAKS=all is set.
"""

import os
import textwrap
from collections import defaultdict

import pytest

from tests.breaks.mutation import Sources, replace, set_value
from tests.breaks.run import Tree, run, unbroken
from tests.breaks.table import Break, breaks
from tests.support.conformance import nodes, rows
from tests.support.paths import ROOT

ALL = breaks()
SOURCES = Sources(ROOT)
EVERY = os.environ.get("MRC_BREAKS") == "all"


def test_every_break_fits_the_sources():
    """Check quickly that every break can still be made after a change of the sources."""
    unfit = []
    for broken in ALL:
        try:
            path, wrong = broken.apply(SOURCES)
            compile(wrong, path, "exec")
        except ValueError as error:
            unfit.append(str(error))
    assert unfit == []


def test_no_break_is_there_twice():
    changes = [broken.model_dump(exclude={"what", "tests"}) for broken in ALL]
    assert all(changes.count(change) == 1 for change in changes)
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

CODE = """
LIMIT = 3

class Queue:
    size: int = 2

    def put(self, item, limit):
        if self.full(item) and limit:
            self.drop(item, "full")
            return
        while limit:
            limit -= 1
        self.items.append(item)
"""


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("self.drop(...)", "pass", "            pass"),
        ("limit", "False", None),  # twice a condition
        ("self.full(item)", "True", "        if True and limit:"),
        ("...", "1", None),
        ('self.drop(item, "late")', "pass", None),
        ("self.items.append(item)", "self.items.append(item)\nself.ring()", "        self.ring()"),
        ("limit -= 1", "return", "            return"),
        ("self.full(...) and ...", "limit", "        if limit:"),
    ],
)
def test_a_part_of_a_definition_is_replaced(old, new, line):
    if line is None:
        with pytest.raises(ValueError, match=r"occurs \d+ times in Queue.put"):
            replace(CODE, "Queue.put", old, new)
    else:
        assert line in replace(CODE, "Queue.put", old, new).splitlines()


def test_a_name_stands_for_the_old_value():
    assert "LIMIT = 3 + 1" in set_value(CODE, "LIMIT", "LIMIT + 1")
    assert "size: int = 5" in set_value(CODE, "Queue.size", "5")
    with pytest.raises(ValueError, match="no constant"):
        set_value(CODE, "Queue.put", "5")


def test_a_break_has_one_change():
    for change in ({}, {"make": "a"}, {"skip": "a", "never": "b"}):
        with pytest.raises(ValueError, match="needs one of"):
            broken("double", ["test_double"], **change)


def test_a_name_of_several_modules_needs_a_folder(tmp_path):
    for folder in ("mrc", "roce"):
        (tmp_path / "hosts" / folder).mkdir(parents=True)
        (tmp_path / "hosts" / folder / "queue.py").write_text(CODE)
    sources = Sources(tmp_path)
    assert sources.find("mrc.Queue.put").path.parent.name == "mrc"
    for name in ("Queue.put", "tcp.Queue.put", "Queue.take"):
        with pytest.raises(ValueError, match="modules define"):
            sources.find(name)


PROJECT = {
    "mrclab/__init__.py": "",
    "hosts/__init__.py": "",
    "hosts/core.py": """\
        TWO = 2

        def double(x):
            return TWO * x

        def half(x):
            return x // TWO
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
    """Return the path of a small project that contains the plugin `outcomes`."""
    root = tmp_path_factory.mktemp("project")
    for name, text in PROJECT.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(textwrap.dedent(text))
    (root / "mrclab" / "hosts").symlink_to("../hosts")
    (root / "tests" / "breaks").mkdir()
    (root / "tests" / "breaks" / "outcomes.py").write_bytes((ROOT / "tests/breaks/outcomes.py").read_bytes())
    return root


def broken(name, tests, **change):
    return Break(row="1", what="something", tests=tests, **{"in": name}, **change)


@pytest.mark.slow
def test_what_comes_of_a_break(project):
    made = [
        broken("double", ["test_double", "test_half", "test_unpacking"], make="TWO", into="3"),
        broken("double", ["test_double"], make="TWO * x", into="x[2]"),
        broken("TWO", ["test_half"], value="2 / 0"),
        broken("half", ["test_half"], make="x // TWO", into="x / TWO"),
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
    change = {"make": "TWO * x", "into": "x * 4"}
    assert tree.run_broken(NODES, broken("double", ["test_double"], **change)).found
    assert tree.run(NODES, NODES) == dict.fromkeys(NODES, "passed")
    with pytest.raises(ValueError, match="occurs 0 times"):
        tree.run_broken(NODES, broken("half", ["test_double"], **change))
    assert tree.run(NODES, NODES) == dict.fromkeys(NODES, "passed")


def few():
    """Return a few breaks, each in a different source file."""
    by_file = defaultdict(list)
    for one in ALL:
        by_file[SOURCES.find(one.name).path].append(one)
    return [by_file[path][0] for path in sorted(by_file)[::5]]


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
