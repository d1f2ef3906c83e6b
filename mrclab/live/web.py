"""Start and end the web server of a live page: socket, address, signals."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from mrclab.linux.errors import InputError, MachineError
from mrclab.linux.life.signals import SIGNALS
from mrclab.live.server import Hub
from mrclab.live.serving import Access

LOOPBACK = "127.0.0.1"
END_S = 30.0
LAST_WORDS_S = 0.5
"""The time, s, that the server runs after a session's end, so that open pages can show the reason."""


MOST_CONNECTIONS = 512
"""The most connections at a time. With more, the session could open no files, and would end. A class of sixty
browsers has at most 360 connections."""
REQUEST_S = 10.0
"""The longest time, s, from a client's connection to its first request."""


class Runs(Protocol):
    """A session that works in one thread and can be stopped."""

    def run(self) -> None:
        """Work until ``stop`` is called, or until an error ends the session."""

    def stop(self) -> None:
        """End ``run`` soon."""


def require_port(port: int) -> None:
    """Raise InputError if this is no port number. Port 0 means any free port."""
    if not 0 <= port <= 65535:
        raise InputError(f"--port must be 0 to 65535, not {port}")


def heeded() -> tuple[signal.Signals, ...]:
    """Return the signals that end the page. After ``nohup``, for instance, SIGHUP does not end it."""
    return tuple(number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN)


def interrupt(_number: int, _frame: object) -> None:
    """Raise KeyboardInterrupt, so that a signal has the effect of Ctrl-C."""
    raise KeyboardInterrupt


class Server(uvicorn.Server):
    """uvicorn's server without its signal handlers, which would end the process but leave the testbed up."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing, so that uvicorn installs no signal handler."""
        yield


class Connection(H11Protocol):
    """A connection of a client. Close it if too many connections are open, or if it brings no request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, or close it."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
            return
        self.loop.call_later(REQUEST_S, self._close_unused)

    def _close_unused(self) -> None:
        if self.cycle is None:
            self.transport.abort()


def listener_on(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raise MachineError if the port cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise MachineError(
            f"cannot listen on {host} port {port}: {error.strerror}", "give another --port"
        ) from None
    return listener


def access_for(*, everybody: bool) -> Access:
    """Return new tokens. ``Host`` headers may have any name if ``everybody``, else only local names."""
    names = frozenset({LOOPBACK, "localhost", "::1"})
    return Access(secrets.token_urlsafe(18), secrets.token_urlsafe(18), None if everybody else names)


def address_of(listener: socket.socket) -> str:
    """Return the page's address for a browser."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "localhost"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def config_of(app: Starlette) -> uvicorn.Config:
    """Return the web server's settings, and filter its log."""
    logging.getLogger("uvicorn.error").addFilter(_of_use)
    return uvicorn.Config(
        app, http=Connection, log_level="warning", lifespan="off", ws="none", timeout_graceful_shutdown=1
    )


def _of_use(record: logging.LogRecord) -> bool:
    """Return False for log lines about pages that are still open when the server ends."""
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if isinstance(error, asyncio.CancelledError):
        return False
    return not record.getMessage().startswith(("Cancel ", "ASGI callable returned without completing"))


def end_with_signals(server: uvicorn.Server) -> None:
    """Make signals end the server. Call this function in the server's loop."""
    loop = asyncio.get_running_loop()
    for number in heeded():
        end = partial(setattr, server, "should_exit", True)
        try:
            loop.add_signal_handler(number, end)
        except NotImplementedError:  # not available on Windows
            signal.signal(number, lambda *_, end=end: loop.call_soon_threadsafe(end))


def print_addresses(address: str, access: Access) -> None:
    """Print two addresses: one for the owner, and one for viewers who may not change anything."""
    print(f"open     {address}?token={access.owner}")
    print(f"to watch {address}?token={access.watcher}   (changes nothing: for the class)")
    print("end with Ctrl-C", flush=True)


def serve_session(
    app: Starlette, listener: socket.socket, hub: Hub, session: Runs, *, name: str = "live session"
) -> None:
    """Run a session in a thread and serve its page until a signal comes or the session has ended."""
    server = Server(config_of(app))
    worker = threading.Thread(target=session.run, name=name)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        end_with_signals(server)
        hub.attach(loop)
        hub.when_over(lambda: loop.call_later(LAST_WORDS_S, setattr, server, "should_exit", True))
        worker.start()
        await server.serve(sockets=[listener])

    try:
        asyncio.run(serve())
    finally:
        session.stop()
        worker.join(END_S)
