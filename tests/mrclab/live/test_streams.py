"""If a client of the live page vanishes or does not read, the server ends the task of its request.

If the server is stopped after this, it ends without error messages.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from mrclab.live import serving, web
from mrclab.live.recording import Recording
from mrclab.live.server import Hub, application
from mrclab.live.serving import Access
from mrclab.live.web import Server, address_of, config_of, listener_on

LIMIT_S = 60.0
VIEWERS = 12
FRAME = {"t_ms": 1, "text": "x" * 300_000, "cards": []}


@dataclass
class Page:
    """A running page server without a session."""

    hub: Hub
    server: Server
    port: int
    thread: threading.Thread
    clients: list[socket.socket] = field(default_factory=list)

    def open(self, count: int) -> None:
        """Connect clients that never read."""
        for _ in range(count):
            client = socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(b"GET /events?token=w HTTP/1.1\r\nHost: x\r\n\r\n")
            self.clients.append(client)

    def wait(self, until: Callable[[], bool]) -> None:
        """Send frames until a condition is true."""
        deadline = time.monotonic() + LIMIT_S
        while not until():
            assert time.monotonic() < deadline
            self.hub.put(dict(FRAME))
            threading.Event().wait(0.02)

    @property
    def requests(self) -> int:
        """The number of requests that are being answered."""
        return len(self.server.server_state.tasks)

    def end(self) -> None:
        """End the server."""
        self.server.should_exit = True
        self.thread.join(LIMIT_S)
        assert not self.thread.is_alive()


@pytest.fixture
def page() -> Iterator[Page]:
    recording = Recording({"fabric": {"name": "tiny"}})
    hub = Hub(recording)
    listener = listener_on("127.0.0.1", 0)
    app = application(None, hub, recording, Access("o", "w", None))  # type: ignore[arg-type]
    server = Server(config_of(app))

    async def serve() -> None:
        hub.attach(asyncio.get_running_loop())
        await server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    page = Page(hub, server, listener.getsockname()[1], thread)
    try:
        yield page
    finally:
        page.end()
        for client in page.clients:
            client.close()
        listener.close()


def test_no_request_outlives_its_client(page: Page) -> None:
    page.open(VIEWERS)
    page.wait(lambda: page.requests == VIEWERS)
    for client in page.clients:
        client.close()
    page.wait(lambda: page.requests == 0)
    assert not page.hub._queues


def test_who_does_not_read_is_let_go(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "UNREAD_S", 0.2)
    page.open(VIEWERS)
    page.wait(lambda: page.requests == VIEWERS)
    page.wait(lambda: page.requests == 0)
    assert not page.hub._queues


def test_the_end_is_quiet_however_many_watch(page: Page, capfd: pytest.CaptureFixture[str]) -> None:
    page.open(VIEWERS)
    page.wait(lambda: page.requests == VIEWERS)
    page.end()
    said: Any = capfd.readouterr()
    assert said.out + said.err == ""


def _refused(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_clients_without_a_token_cannot_take_all_open_files(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "MOST_CONNECTIONS", 5)
    for _ in range(8):
        page.clients.append(socket.create_connection(("127.0.0.1", page.port), timeout=LIMIT_S))
    assert all(_refused(client) for client in page.clients[5:])
    assert len(page.server.server_state.connections) == 5


def test_a_client_that_asks_nothing_is_let_go(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "REQUEST_S", 0.2)
    silent = socket.create_connection(("127.0.0.1", page.port), timeout=LIMIT_S)
    page.open(1)
    page.wait(lambda: page.requests == 1)
    assert _refused(silent)
    assert page.requests == 1
    silent.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "2001:db8::7"])
def test_the_printed_address_can_be_opened(host: str) -> None:
    listener: Any = SimpleNamespace(getsockname=lambda: (host, 8047, 0, 0))
    found = urlsplit(address_of(listener))
    assert (found.hostname, found.port) == (host, 8047)
