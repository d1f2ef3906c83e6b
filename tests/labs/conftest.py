"""Tests of the labs. If several tests need the same run, it runs once. All tests have the mark `labs`."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrclab.labs.measuring import CACHE


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("labs")


@pytest.fixture(autouse=True, scope="session")
def runs_are_kept(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the results of runs in a folder that all workers share."""
    folder = Path(tmp_path_factory.getbasetemp()).parent / "lab-runs"
    folder.mkdir(exist_ok=True)
    pytest.MonkeyPatch().setenv(CACHE, str(folder))
