"""Debian's unmodified perftest over two NICs in this process: some options run, others are refused."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from mrclab.native.build import VERBS, libraries
from tests.support.native_programs import needs_compiler
from tests.support.native_services import TIMEOUT_S, Services, await_listener, free_port, running

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(
        shutil.which("ib_write_bw") is None and not os.environ.get("CI"),
        reason="needs perftest (apt install perftest)",
    ),
]


def _start(nic: Path, *words: str) -> AbstractContextManager[subprocess.Popen[str]]:
    folder = libraries()[0].parent
    return running(nic, folder, *words, preload=str(folder / VERBS))


def _both(services: Services, *words: str) -> tuple[int | None, str, str]:
    """Run a program on two hosts. Return the client's exit code, and the output of client and server.

    If the server ends before it listens, no client is started, and the exit code is None.
    """
    here, there = services.paths
    port = free_port()
    with _start(there, *words, "-p", port) as server:
        if not await_listener(int(port), server):
            return None, "", server.communicate(timeout=TIMEOUT_S)[0]
        with _start(here, *words, "-p", port, "127.0.0.1") as client:
            said, _ = client.communicate(timeout=TIMEOUT_S)
        server.kill()  # if the client failed, the server would wait for it
        return client.returncode, said, server.communicate(timeout=TIMEOUT_S)[0]


@pytest.mark.parametrize(
    "words",
    [
        "ib_write_bw -n 200",
        "ib_write_bw -x 3 -n 200",
        "ib_write_bw -I 236 -s 236 -n 2000",
        "ib_write_bw -q 4 -b -l 16 -D 2",
        "ib_write_lat -s 8 -n 50 -I 64",
    ],
)
def test_it_runs(services: Services, words: str) -> None:
    code, said, _ = _both(services, *words.split())
    assert code == 0, said
    assert re.search(r"^ *\d+ +[1-9]\d* +[\d. \t]+$", said, re.MULTILINE), said


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("ib_send_bw -n 10", "SEND"),
        ("ib_read_bw -n 10", "RDMA READ"),
        ("ib_atomic_bw -n 10", "atomic fetch and add"),
        ("ib_write_bw -c UC -n 10", "a queue pair of type UC"),
        ("ib_write_bw -R -n 10", "rdma_create_event_channel"),
    ],
)
def test_it_is_refused(services: Services, words: str, name: str) -> None:
    code, said, other = _both(services, *words.split())
    assert code != 0, said
    lines = [line for line in (said + other).splitlines() if line.startswith("mrclab: ")]
    assert lines
    assert all(line.startswith(f"mrclab: {name} is not supported: ") for line in lines), lines
