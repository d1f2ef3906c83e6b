"""The socket of a NIC's profiles: clients send valid or invalid requests, or do not read the answers."""

from __future__ import annotations

import json
import os
import select
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mrclab.hosts.mrc import Endpoint, MrcConfig
from mrclab.hosts.nic.device import Device
from mrclab.hosts.profile_socket import MOST_CLIENTS, PREFIX, HostProfiles, ask, sockets_here
from tests.support.mrc_sim import port_addresses


@pytest.fixture
def served() -> Iterator[HostProfiles]:
    endpoint = Endpoint(port_addresses(0, 2), MrcConfig())
    profiles = HostProfiles(cast(Device, SimpleNamespace(endpoint=endpoint, now=lambda: 7)), "h0")
    yield profiles
    profiles.close()


def name_of(profiles: HostProfiles) -> str:
    (name,) = (name for name in sockets_here() if name.startswith(f"{PREFIX}{os.getpid()}-"))
    return name


def work(profiles: HostProfiles, done: threading.Event) -> None:
    """Serve the socket as a NIC's process does, until ``done`` is set."""
    while not done.is_set():
        readable, _, _ = select.select(profiles.descriptors(), [], [], 0.01)
        profiles.serve(readable)


@pytest.fixture
def at_work(served: HostProfiles) -> Iterator[HostProfiles]:
    done = threading.Event()
    thread = threading.Thread(target=work, args=(served, done))
    thread.start()
    yield served
    done.set()
    thread.join()


def client(profiles: HostProfiles) -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    found.settimeout(20)
    found.connect(f"\0{name_of(profiles)}")
    return found


def test_a_client_is_answered(at_work: HostProfiles) -> None:
    answer = ask(name_of(at_work), {"do": "show"})
    assert (answer["host"], answer["evs"][0]["state"]) == ("h0", "ONLINE")
    assert ask(name_of(at_work), {"do": "dance"})["errno"] == "EINVAL"


def test_several_requests_in_pieces_are_answered_in_order(at_work: HostProfiles) -> None:
    with client(at_work) as connection, connection.makefile("rb") as lines:
        for piece in (b'{"do": "events"}\n{"do"', b': "show"}', b"\nnonsense\n\xff\n"):
            connection.sendall(piece)
        answers: list[dict[str, Any]] = [json.loads(lines.readline()) for _ in range(4)]
    assert answers[0]["events"] == []
    assert "evs" in answers[1]
    assert [answer["errno"] for answer in answers[2:]] == ["EINVAL", "EINVAL"]


def flood(connection: socket.socket, piece: bytes) -> bool:
    """Send pieces, up to 64 MiB. Return whether the other end closed the connection."""
    try:
        for _ in range((64 << 20) // len(piece)):
            connection.sendall(piece)
    except (BrokenPipeError, ConnectionResetError):
        return True
    return False


def test_a_line_without_end_ends_the_connection(at_work: HostProfiles) -> None:
    with client(at_work) as connection:
        assert flood(connection, bytes(1 << 14))
    assert ask(name_of(at_work), {"do": "show"})["host"] == "h0"


def test_a_client_that_does_not_read_is_dropped(at_work: HostProfiles) -> None:
    with client(at_work) as connection:
        assert flood(connection, b'{"do": "show"}\n' * 64)
    assert ask(name_of(at_work), {"do": "show"})["host"] == "h0"


def test_only_so_many_clients_are_let_in(at_work: HostProfiles) -> None:
    clients = [client(at_work) for _ in range(MOST_CLIENTS)]
    for held in clients:
        held.sendall(b'{"do": "events"}\n')
        assert held.recv(1 << 12)
    with client(at_work) as late:
        assert late.recv(1) == b""
    for held in clients:
        held.close()


def test_the_name_is_gone_with_the_socket(served: HostProfiles) -> None:
    name = name_of(served)
    served.close()
    assert name not in sockets_here()
    assert served.descriptors() == []
