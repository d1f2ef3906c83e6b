"""The conformance table names modules, tests and options that exist, and all modules there are."""

import re
from dataclasses import fields

from hosts.mrc import MrcConfig, SpecReading
from tests.support.paths import ROOT

ROWS = [
    [cell.strip() for cell in line.strip("|\n").split("|")]
    for line in (ROOT / "docs" / "mrc-conformance.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| Item")
]
MODULES = {path.stem for room in ("mrc", "rdma") for path in (ROOT / "hosts" / room).rglob("*.py")}
TESTS = {
    name
    for path in (ROOT / "tests" / "hosts" / "mrc").rglob("test_*.py")
    for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
}
NOT_NAMED = {
    *("__init__", "events", "qlog", "memory", "config", "paths", "psn", "headers", "counters", "rtt", "ev"),
    *("objects", "rate_cap", "values", "window_report"),
}
OPTIONS = {field.name for kind in (MrcConfig, SpecReading) for field in fields(kind)}


def test_rows_are_whole():
    assert len(ROWS) > 80
    assert {len(row) for row in ROWS} == {3}
    assert len({row[0] for row in ROWS}) == len(ROWS)


def test_modules_and_options_named_exist():
    named = {name for row in ROWS for name in re.findall(r"`(\w+)`", row[1])}
    assert named <= MODULES | OPTIONS
    assert named >= MODULES - NOT_NAMED


def test_tests_named_exist():
    named = {name for row in ROWS for name in re.findall(r"`(\w+)`", row[2])}
    assert named <= TESTS


def test_what_is_done_is_tested_and_what_is_not_says_why():
    for item, where, tested in ROWS:
        if not tested:
            assert re.search(r"not done: |sent as 0, ignored: |never sent|the switches' part", where), item
