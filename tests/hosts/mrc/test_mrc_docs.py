"""The conformance table names only existing modules, tests and options, and it names every module."""

import re
from dataclasses import fields

from mrclab.hosts.mrc import MrcConfig, SpecReading
from tests.support.conformance import nodes, rows
from tests.support.paths import ROOT

ROWS = rows()
MODULES = {path.stem for room in ("mrc", "rdma") for path in (ROOT / "hosts" / room).rglob("*.py")}
NOT_NAMED = {
    *("__init__", "codec", "config", "events", "memory", "paths", "rtt"),
}
OPTIONS = {field.name for kind in (MrcConfig, SpecReading) for field in fields(kind)}


def test_rows_are_whole():
    assert len(ROWS) > 80
    assert len({row.item for row in ROWS}) == len(ROWS)


def test_modules_and_options_named_exist():
    named = {name for row in ROWS for name in re.findall(r"`(\w+)`", row.where)}
    assert named <= MODULES | OPTIONS
    assert named >= MODULES - NOT_NAMED


def test_tests_named_exist():
    assert {name for row in ROWS for name in row.tests} <= set(nodes())
