"""NIC services without a fabric for the tests of the C libraries."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrclab.hosts.service.control import control
from tests.support.native_services import Services


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    """Start two NIC services. Every program may control a NIC."""
    monkeypatch.setattr(control, "may_control", lambda _pid: True)
    with tempfile.TemporaryDirectory() as name:
        made = Services(Path(name))
        yield made
        made.close()
