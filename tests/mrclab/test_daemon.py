"""The daemon's socket: if a client sends bad requests or none, the daemon still serves the other clients."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import finsy as fy
import grpc
import pytest
from finsy.proto import p4r, p4r_grpc

from mrclab import daemon
from mrclab.linux.requests import carry_out

WHY = "the switch server (process 7) was ended by SIGKILL"


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Start a daemon without a fabric, whose switches have ended. Yield the path of its socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "sock"))
        listener.listen()
        lab: Any = SimpleNamespace(target=SimpleNamespace(ended=lambda: WHY))
        server = threading.Thread(target=daemon.serve, args=(lab, listener))
        server.start()
        yield tmp_path / "sock"
        assert ask(tmp_path / "sock", b'{"do": "down"}\n') == {"pid": os.getpid()}
        server.join(60)
        assert not server.is_alive()


def ask(path: Path, line: bytes) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(60)
        connection.connect(str(path))
        connection.sendall(line)
        with connection.makefile("rb") as lines:
            answer: dict[str, Any] = json.loads(lines.readline())
    return answer


def test_a_client_that_is_silent_or_drips_holds_up_no_other(path: Path) -> None:
    """A silent or slow client must not block other clients."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as drips,
    ):
        silent.connect(str(path))
        drips.connect(str(path))
        drips.sendall(b'{"do"')
        assert "not a request" in ask(path, b"nonsense\n")["error"]
        drips.sendall(b': "status"}\n')
        assert WHY in json.loads(drips.makefile("rb").readline())["error"]


def test_a_request_is_refused_with_the_reason_once_the_switches_have_ended(path: Path) -> None:
    assert ask(path, b'{"do": "status"}\n') == {
        "error": f"{WHY}; 'mrclab down' removes the testbed",
        "kind": "failed",
    }


def test_a_switch_that_does_not_answer_is_told_in_one_line() -> None:
    with socket.socket() as bound:  # it does not listen, so every connection is refused
        bound.bind(("127.0.0.1", 0))
        with grpc.insecure_channel(f"127.0.0.1:{bound.getsockname()[1]}") as channel:
            stub = p4r_grpc.P4RuntimeStub(channel)
            lab: Any = SimpleNamespace(
                target=SimpleNamespace(ended=lambda: None),
                faults=SimpleNamespace(undo_all=lambda: stub.Capabilities(p4r.CapabilitiesRequest())),
            )
            answer = carry_out(b'{"do": "restore", "where": null}', daemon.Daemon(lab).operations)
    assert answer == {
        "error": "the switch does not answer: restore it, or wait until it runs",
        "kind": "input",
    }


def test_the_counters_of_a_switch_that_is_just_switched_off_are_refused_in_the_same_line() -> None:
    off = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "p1-t1-0 is switched off"
    )

    def read(name: str) -> None:
        raise fy.P4ClientError(off, "ReadRequest")

    lab: Any = SimpleNamespace(
        target=SimpleNamespace(ended=lambda: None),
        controller=SimpleNamespace(counters=read),
        fabric=SimpleNamespace(name="tiny", switches=(SimpleNamespace(name="p1-t1-0"),)),
    )
    answer = carry_out(b'{"do": "counters", "switch": "p1-t1-0"}', daemon.Daemon(lab).operations)
    assert answer["error"] == "the switch does not answer: restore it, or wait until it runs"


@pytest.mark.parametrize("line", [b"[" * 60_000 + b"\n", b"x" * (daemon.REQUEST_BYTES + 10)])
def test_nonsense_of_any_length_is_answered_and_the_daemon_goes_on(path: Path, line: bytes) -> None:
    """Even a line of 60,000 brackets must not end the daemon and its testbed."""
    assert "error" in ask(path, line)
    assert "not a request" in ask(path, b"{}\n")["error"]
