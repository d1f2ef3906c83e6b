"""A fabric on BMv2 that is up for all tests of a module."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import Up, up
from tests.support.switch_fixtures import mark_bmv2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_bmv2(Path(__file__).parent, items)


@pytest.fixture(scope="module")
def tiny() -> Iterator[Up]:
    """Bring up the topology `tiny` on BMv2. This replaces the fixture of the same name for ebpf."""
    with up("tiny", "bmv2") as running:
        yield running
