from pathlib import Path

import pytest

from tests.support.switch_fixtures import mark_bmv2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_bmv2(Path(__file__).parent, items)
