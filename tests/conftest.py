"""Set up Hypothesis, select and order the tests, and skip tests that this machine cannot run."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from mrclab.testbed.doctor import FRR
from tests.support.command import Up, up

LIVE = Path(__file__).parent / "end_to_end" / "live"
KERNEL_MARKS = ("root", "bmv2", "docker")
"""Tests with one of these marks change the machine's kernel state, so they run one after another.

A test that is also marked `parallel` uses separate namespaces and processes, so it can run next to others.
"""

# A deadline would make a test fail on a busy machine. With the printed blob, a failure can be repeated.
settings.register_profile("mrclab", deadline=None, print_blob=True)
settings.load_profile("mrclab")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kernel",
        choices=["all", "only", "without"],
        default="all",
        help="all tests, only those that need the kernel to themselves, or only the others, which may run in "
        "parallel",
    )


def pytest_configure() -> None:
    """Restore Python's usual handlers of SIGINT and SIGHUP, so that signals end the programs under test.

    A shell starts background jobs with SIGINT ignored, and ``nohup`` starts a program with SIGHUP ignored.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = config.getoption("--kernel")
    if part != "all":
        wanted = part == "only"
        kept, left_out = [], []
        for item in items:
            (kept if _needs_kernel(item) == wanted else left_out).append(item)
        items[:] = kept
        config.hook.pytest_deselected(items=left_out)
        if os.environ.get("MRCLAB_TESTS_TOGETHER"):
            # Tests of live pages use all CPUs, so they run last (tools/test.sh).
            items.sort(key=lambda item: LIVE in item.path.parents)
    for item in items:
        if item.get_closest_marker("root") and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="needs root: it makes network namespaces or loads BPF"))
        if item.get_closest_marker("bmv2") and shutil.which("simple_switch_grpc") is None:
            item.add_marker(pytest.mark.skip(reason="simple_switch_grpc is not on PATH"))
        if (
            item.get_closest_marker("frr")
            and not os.access(FRR / "zebra", os.X_OK)
            and not os.environ.get("CI")
        ):
            item.add_marker(pytest.mark.skip(reason="FRRouting is not installed (apt install frr)"))


def _needs_kernel(item: pytest.Item) -> bool:
    marks = {mark.name for mark in item.iter_markers()}
    return bool(marks & set(KERNEL_MARKS)) and not ("parallel" in marks and not marks & {"bmv2", "docker"})


@pytest.fixture(scope="session")
def tiny() -> Iterator[Up]:
    """Bring up the topology `tiny` on the ebpf target, for all tests that do not change it."""
    with up("tiny", "ebpf") as running:
        yield running
