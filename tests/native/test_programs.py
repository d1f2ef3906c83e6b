"""Programs in C that do unusual or forbidden things. Each program ends as it would on hardware."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from mrclab.native.build import VERBS, libraries
from tests.support.native_programs import built, needs_compiler
from tests.support.native_services import TIMEOUT_S, Services, free_port, running

pytestmark = needs_compiler
SIZE, COUNT = "20000", "64"
REFUSALS = 23


@pytest.fixture(scope="module")
def programs() -> Iterator[dict[str, Path]]:
    with built(
        pair="pair",
        mrc="pair",
        refusals="refusals",
        loader="loader",
        connects="connects",
        destroys="destroys",
        ended="ended",
        attributes="attributes",
    ) as made:
        yield made


def _start(nic: Path, *words: str | Path) -> AbstractContextManager[subprocess.Popen[str]]:
    folder = libraries()[0].parent
    return running(nic, folder, *words, preload=str(folder / VERBS))


def _end(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=TIMEOUT_S)[0]


def _pair(services: Services, pair: Path, *mode: str) -> list[tuple[int, str]]:
    """Run a server with a mode, and a client. Return the exit code and the output of each."""
    here, there = services.paths
    port = free_port()
    with (
        _start(there, pair, "server", port, SIZE, COUNT, *mode) as server,
        _start(here, pair, "client", port, SIZE, COUNT, "127.0.0.1") as client,
    ):
        said = [_end(process) for process in (server, client)]
    return [(server.returncode, said[0]), (client.returncode, said[1])]


def _await_no_objects(services: Services) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while services.objects() != (0, 0):
        assert time.monotonic() < deadline, services.objects()
        time.sleep(0.01)


def test_what_mrc_has_not_is_refused_by_name(services: Services, programs: dict[str, Path]) -> None:
    with _start(services.paths[0], programs["refusals"]) as program:
        said = _end(program).splitlines()
    assert program.returncode == 0, said
    lines = [re.fullmatch(r"mrclab: (.+) is not supported: .+", line) for line in said]
    answers = [line.split(": ") for line, told in zip(said, lines, strict=True) if told is None]
    assert len(answers) == REFUSALS
    assert {error for _, error in answers} == {"EOPNOTSUPP"}
    assert [told[1] for told in lines if told is not None] == [name for name, _ in answers]


def test_a_program_that_loads_the_libraries_itself_gets_ours(
    services: Services, programs: dict[str, Path]
) -> None:
    with _start(services.paths[0], programs["loader"], "verbs", "libibverbs.so.1") as program:
        said = _end(program)
    assert program.returncode == 0, said
    assert "mrc0\n" in said
    assert "mrclab: rdma_create_event_channel is not supported" in said
    for name in ("lib_mrc.so", "libmrc.so", "libnv_mrc.so"):
        with _start(services.paths[0], programs["loader"], "mrc", name) as program:
            assert _end(program) == "1.0.1\n"


@pytest.mark.parametrize("api", ["pair", "mrc"])
def test_children_of_a_program_leave_its_memory_and_rings_alone(
    services: Services, programs: dict[str, Path], api: str
) -> None:
    for code, said in _pair(services, programs[api], "fork"):
        assert f"ok {COUNT} messages" in said
        assert code == 0


@pytest.mark.parametrize(
    ("mode", "event"), [("unmap", "local work queue catastrophic error"), ("dereg", "local access violation")]
)
def test_memory_that_goes_away_under_writes_ends_both_ends(
    services: Services, programs: dict[str, Path], mode: str, event: str
) -> None:
    server, client = _pair(services, programs["pair"], mode)
    assert server[0] == 0, server
    assert event in server[1]
    assert client[0] == 3, client
    assert "failed with status 11" in client[1]
    _await_no_objects(services)


def test_connections_leave_no_descriptors_behind(services: Services, programs: dict[str, Path]) -> None:
    here, there = services.paths
    port = free_port()
    with (
        _start(there, programs["connects"], "server", port, "100") as server,
        _start(here, programs["connects"], "client", port, "100", "127.0.0.1") as client,
    ):
        assert server.stdin is not None
        assert server.stdout is not None
        found = []
        for word in ("tenth", "all"):
            assert server.stdout.readline() == f"{word}\n"
            gc.collect()  # remove objects of earlier tests, because the service runs in this process
            pids = "self", str(server.pid)
            found.append([len(os.listdir(f"/proc/{pid}/fd")) for pid in pids])
            server.stdin.write("\n")
            server.stdin.flush()
        assert "ok 100 connections" in _end(client)
        assert "ok 100 connections" in _end(server)
    assert all(last <= first for first, last in zip(*found, strict=True)), found
    _await_no_objects(services)


def test_attributes_are_checked_and_the_right_to_write_is_one_of_them(
    services: Services, programs: dict[str, Path]
) -> None:
    """A refused change of attributes changes nothing."""
    here, there = services.paths
    with _start(here, programs["attributes"], there) as program:
        assert _end(program) == "ok\n"


def test_objects_are_destroyed_after_their_events_are_acknowledged(
    services: Services, programs: dict[str, Path]
) -> None:
    """Otherwise another thread would use a queue pair or a queue that no longer exists."""
    here, there = services.paths
    with _start(here, programs["destroys"], there) as program:
        assert _end(program) == "ok\n"


def test_polling_after_the_end_of_the_session_does_not_touch_queue_pairs_in_the_making(
    services: Services, programs: dict[str, Path]
) -> None:
    with _start(services.paths[0], programs["ended"]) as program:
        assert (_end(program), program.returncode) == ("ok\n", 0)


@pytest.mark.parametrize("victim", ["server", "client"])
def test_a_program_that_is_killed_leaves_nothing_in_the_nic(
    services: Services, programs: dict[str, Path], victim: str
) -> None:
    here, there = services.paths
    words = (free_port(), SIZE, "1000000")
    with (
        _start(there, programs["pair"], "server", *words, "events") as server,
        _start(here, programs["pair"], "client", *words, "127.0.0.1") as client,
    ):
        assert client.stdout is not None
        assert client.stdout.readline() == "connected\n"
        (server if victim == "server" else client).send_signal(signal.SIGKILL)
        _end(client)
        _end(server)
    codes = {"server": server.returncode, "client": client.returncode}
    assert codes.pop(victim) == -signal.SIGKILL
    assert set(codes.values()) <= {3, 4}
    _await_no_objects(services)
