"""A fabric on the reference switch, up for a module's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import Up, up
from tests.support.switch_fixtures import mark_bmv2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_bmv2(Path(__file__).parent, items)


@pytest.fixture(scope="module")
def tiny() -> Iterator[Up]:
    """The topology `tiny`, up on BMv2. Takes the place of the fixture of that name for ebpf."""
    with up("tiny", "bmv2") as running:
        yield running
