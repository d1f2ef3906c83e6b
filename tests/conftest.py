"""Which tests this machine cannot run, and why."""

import os
import shutil
import signal

import pytest

from testbed.frr import DIRECTORY


def pytest_configure() -> None:
    """Has programs under test end at SIGINT even where a shell started us in the background, without it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("root") and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="needs root: it makes network namespaces or loads BPF"))
        if item.get_closest_marker("bmv2") and shutil.which("simple_switch_grpc") is None:
            item.add_marker(pytest.mark.skip(reason="simple_switch_grpc is not on PATH"))
        if (
            item.get_closest_marker("frr")
            and not os.access(DIRECTORY / "zebra", os.X_OK)
            and not os.environ.get("CI")
        ):
            item.add_marker(pytest.mark.skip(reason="FRRouting is not installed (apt install frr)"))
