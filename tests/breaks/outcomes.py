"""A pytest plugin that records how each test ended, and which exception ended the test.

A test finds a break (a deliberate error) only if the test's code raised the exception that ended the test.
An import error, or an exception from the core, does not show that the test checks for the break.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

REPORT = "BREAKS_REPORT"
"""The environment variable with the path of the report."""
CORE = "mrclab.hosts"
"""The package whose path is written to the report, to show which sources were tested."""

_failures: dict[str, str] = {}
_passed: set[str] = set()


def pytest_sessionstart() -> None:
    """Let property tests use the same examples each time, and switch shrinking off to save time."""
    hypothesis.settings.register_profile(
        "breaks",
        deadline=None,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    )
    hypothesis.settings.load_profile("breaks")


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _raised_by_a_test(error: BaseException) -> bool:
    """Return whether an assertion failed, or an exception was raised in a file of the tests."""
    if isinstance(error, AssertionError | pytest.fail.Exception):
        return "Timeout" not in str(error)
    trace = error.__traceback__
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    return "tests" in Path(trace.tb_frame.f_code.co_filename).parts


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Record how a test ended."""
    yield
    name = item.nodeid.split("::")[-1].split("[")[0]
    if call.excinfo is not None and call.excinfo.typename != "Skipped":
        error = call.excinfo.value
        found = call.when == "call" and all(_raised_by_a_test(leaf) for leaf in _leaves(error))
        if found or name not in _failures:
            _failures[name] = "found" if found else f"{type(error).__name__}: {error}"
    elif call.when == "call":
        _passed.add(name)


def pytest_sessionfinish() -> None:
    """Write the report. Each test has the outcome `passed`, `found` (it found the break), or an exception."""
    core = sys.modules.get(CORE)
    outcomes = {**dict.fromkeys(sorted(_passed), "passed"), **_failures}
    report = {"core": getattr(core, "__file__", None), "tests": outcomes}
    Path(os.environ[REPORT]).write_text(json.dumps(report), encoding="utf-8")
