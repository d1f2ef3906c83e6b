"""A low limit of open files is raised, or an error says how to raise it, before anything is started."""

from __future__ import annotations

import resource

import pytest

from mrclab.linux.errors import MachineError
from mrclab.testbed import doctor


@pytest.fixture
def low(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Fake a soft limit of 64 and a hard limit of 256. Return the list of limits that mrclab sets."""
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 256))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: made.append(limits))
    return made


def test_a_low_limit_is_raised(low: list[tuple[int, int]]) -> None:
    assert doctor._files().ok
    assert low == [(doctor.MIN_FILES, doctor.MIN_FILES)]


def test_a_limit_that_may_not_be_raised_is_named(
    low: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this check, a run failed only after 122 s, with 77,000 lines of errors."""

    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    with pytest.raises(MachineError, match="at most 64 files may be open here: ulimit -n 1024"):
        doctor.require_machine()
