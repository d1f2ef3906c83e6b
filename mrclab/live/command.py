"""``mrclab live``: bring up or join a testbed, send traffic, and serve the page."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from mrclab import running
from mrclab.control import call
from mrclab.linux.errors import InputError, MachineError
from mrclab.linux.scheduling import stand_back
from mrclab.live.access import Access
from mrclab.live.describe import about
from mrclab.live.plan import usual_plan
from mrclab.live.recording import Recording
from mrclab.live.server import Hub, application
from mrclab.live.session import Session
from mrclab.live.training.follow import Follower
from mrclab.live.training.serve import application as run_application
from mrclab.testbed import state
from mrclab.testbed.names import Names, require_root
from mrclab.testbed.network import FabricNetwork
from mrclab.version import version

LOOPBACK = "127.0.0.1"
END_S = 30.0
LAST_WORDS_S = 0.5
"""How long pages are still served after the testbed is gone, so that they can say so."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def live(args: argparse.Namespace) -> int:
    """Serve the page until a signal comes. Raise InputError or MachineError before anything is started."""
    if not 0 <= args.port <= 65535:
        raise InputError(f"--port must be 0 to 65535, not {args.port}")
    if args.run is not None:
        if args.topology is not None or args.program is not None:
            raise InputError("--run shows a run that has its own testbed: leave --topology and --program out")
        follower = Follower(Path(args.run))
        with _listener(args.listen or LOOPBACK, args.port) as listener:
            return _serve_run(follower, listener, everybody=args.listen is not None)
    require_root("live")
    for number in _heeded():
        signal.signal(number, _interrupt)
    names = Names.from_environment()
    listener = _listener(args.listen or LOOPBACK, args.port)
    with listener, _testbed(names, args.topology, args.target, args.program):
        network = FabricNetwork.attached(names)
        return _serve(network, listener, everybody=args.listen is not None)


def _heeded() -> tuple[signal.Signals, ...]:
    """Return the signals that end the page: not the ones ignored from the start (``nohup``)."""
    return tuple(number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let no signal disturb the body of the ``with``; further signals are dropped."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Server(uvicorn.Server):
    """uvicorn, but signals are ours: its own handling would end the process before the testbed is down."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def _listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raise MachineError if the port is taken."""
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


@contextmanager
def _testbed(names: Names, topology: str | None, target: str, program: str | None) -> Iterator[None]:
    """Join the testbed that is up, or bring one up and take it down again at the end."""
    found = state.read(names)
    if found is not None and found.alive(names):
        call(names, "status", verify=False)  # refuses for a testbed that takes no commands, and says whose
        if topology is not None and found.fabric().name != topology:
            raise InputError(
                f"topology {found.topology} is up already: leave out --topology to join it, "
                "or run 'mrclab down' first"
            )
        if program is not None:
            raise InputError("a testbed is up already: leave out --program, or run 'mrclab down' first")
        print(f"joining the testbed that is up (topology {found.topology})", flush=True)
        yield
        return
    try:
        if running.up(topology or "lab", target, program=program):
            raise MachineError("the testbed did not come up")
        yield
    finally:
        with _uninterrupted():
            found = state.read(names)
            if found is not None and found.alive(names):
                running.down()


def _access(everybody: bool) -> Access:
    names = frozenset({LOOPBACK, "localhost", "::1"})
    return Access(secrets.token_urlsafe(18), secrets.token_urlsafe(18), None if everybody else names)


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{'localhost' if host in ('0.0.0.0', '::') else host}:{port}/"


def _config(app: Starlette) -> uvicorn.Config:
    logging.getLogger("uvicorn.error").addFilter(_of_use)
    return uvicorn.Config(app, log_level="warning", lifespan="off", ws="none", timeout_graceful_shutdown=1)


def _of_use(record: logging.LogRecord) -> bool:
    """Return whether a line of the web server is of use to the user: not that pages are still open."""
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if isinstance(error, asyncio.CancelledError):
        return False
    return not record.getMessage().startswith(("Cancel ", "ASGI callable returned without completing"))


def _end_with_signals(server: uvicorn.Server) -> None:
    for number in _heeded():
        asyncio.get_running_loop().add_signal_handler(number, partial(setattr, server, "should_exit", True))


def _serve_run(follower: Follower, listener: socket.socket, *, everybody: bool) -> int:
    stand_back()  # the run at the same time goes first
    access = _access(everybody)
    server = _Server(_config(run_application(follower, access)))
    print(f"open {_address(listener)}?token={access.watcher}")
    print("end with Ctrl-C", flush=True)

    async def serve() -> None:
        _end_with_signals(server)
        await server.serve(sockets=[listener])

    asyncio.run(serve())
    return 0


def _serve(network: FabricNetwork, listener: socket.socket, *, everybody: bool) -> int:
    access = _access(everybody)
    recording = Recording(about(network.fabric, network.target, version()))
    hub = Hub(recording)
    session = Session(network, usual_plan(network.target), hub.put)
    app = application(session, hub, recording, access)
    server = _Server(_config(app))
    worker = threading.Thread(target=session.run, name="live session")
    address = _address(listener)
    file = network.names.state_dir / "live.json"
    print(f"open     {address}?token={access.owner}")
    print(f"to watch {address}?token={access.watcher}   (changes nothing: for the class)")
    print("end with Ctrl-C", flush=True)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        _end_with_signals(server)
        hub.attach(loop)
        hub.when_over(lambda: loop.call_later(LAST_WORDS_S, setattr, server, "should_exit", True))
        worker.start()
        await server.serve(sockets=[listener])

    _leave_address(file, address, access.watcher)
    try:
        asyncio.run(serve())
    finally:
        file.unlink(missing_ok=True)
        session.stop()
        worker.join(END_S)
    if session.gone is not None:
        print(f"mrclab: {session.gone}")
        return 1
    return 0


def _leave_address(file: Path, address: str, token: str) -> None:
    """Say where the page is, for `mrclab watch`; only root can read it."""
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
        json.dump({"address": address, "token": token}, out)
