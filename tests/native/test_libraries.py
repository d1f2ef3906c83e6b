"""The C libraries: built without a warning, with the right exports and no others."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mrclab.native.build import ALIASES, MRC, SOURCE, VERBS, libraries

HEADER = Path("/usr/include/infiniband/verbs.h")
pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or not HEADER.exists(),
    reason="needs a C compiler and libibverbs' header (apt install gcc libibverbs-dev)",
)
MOST_LINES = 2500
HARMLESS = re.compile(
    r"ibv_(\w+_str|rate_to_\w+|copy_\w+|get_sysfs_path|read_sysfs_file|register_driver|do(nt)?fork_range)$"
)
"""Functions that take no object of ours: libibverbs' own do."""


def _exports(path: Path) -> dict[str, str]:
    """Return the exported functions of a library with their versions."""
    done = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True)
    found = {}
    for line in done.stdout.splitlines():
        _, kind, name = line.split()[-3:]
        if kind in "TW":
            symbol, _, version = name.partition("@@")
            if "@" not in symbol:  # an older version of a function has one @
                found[symbol] = version
    return found


def _library(name: str) -> Path:
    return next(path for path in libraries() if path.name == name)


def test_every_function_of_libibverbs_that_takes_an_object_is_ours() -> None:
    real = next(Path("/usr/lib").glob("*/libibverbs.so.1"))
    wanted = {
        name: version
        for name, version in _exports(real).items()
        if re.match("_?ibv_", name) and "PRIVATE" not in version and not HARMLESS.match(name)
    }
    ours = _exports(_library(VERBS))
    assert {name: ours.get(name) for name in wanted if ours.get(name) != wanted[name]} == {}


def test_nothing_else_is_exported() -> None:
    allowed = re.compile(r"_?ibv_\w+|rdma_create_(event_channel|id|ep)|dlsym|dlvsym|mrclab_\w+")
    assert [name for name in _exports(_library(VERBS)) if not allowed.fullmatch(name)] == []


MRC_FUNCTIONS = """
query_device_ex query_device query_version create_context destroy_context create_comp_channel
get_comp_channel_fd destroy_comp_channel create_cq poll_cq destroy_cq create_qp_hint destroy_qp_hint
query_qp_hint modify_qp_hint create_qp destroy_qp query_qp modify_qp get_qpn post_recv post_send
get_async_event ack_async_event req_notify_cq get_cq_event ack_cq_events
"""


@pytest.mark.parametrize("name", [MRC, *ALIASES])
def test_the_mrc_library_has_the_27_functions_and_no_others(name: str) -> None:
    wanted = {f"mrc_{function}" for function in MRC_FUNCTIONS.split()}
    assert len(wanted) == 27
    assert set(_exports(_library(name))) == wanted


def test_the_c_room_stays_small() -> None:
    lines = sum(len(path.read_text().splitlines()) for path in SOURCE.glob("*.[ch]"))
    assert lines <= MOST_LINES
