"""``mrclab live``: start or join a testbed, send traffic, and serve the live page."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mrclab import running
from mrclab.control import call
from mrclab.linux.errors import InputError, MachineError
from mrclab.linux.life.signals import SIGNALS
from mrclab.linux.scheduling import stand_back
from mrclab.live.describe import about
from mrclab.live.plan import usual_plan
from mrclab.live.recording import Recording
from mrclab.live.server import Hub, application
from mrclab.live.session import Session
from mrclab.live.training import Follower
from mrclab.live.training import application as run_application
from mrclab.live.web import (
    LOOPBACK,
    Server,
    access_for,
    address_of,
    config_of,
    end_with_signals,
    heeded,
    interrupt,
    listener_on,
    print_addresses,
    require_port,
    serve_session,
)
from mrclab.testbed import state
from mrclab.testbed.names import Names, require_root
from mrclab.testbed.network import FabricNetwork
from mrclab.version import version


def live(args: argparse.Namespace) -> int:
    """Serve the page until a signal comes. Raise InputError or MachineError before anything is started."""
    require_port(args.port)
    if args.run is not None:
        if args.topology is not None or args.program is not None:
            raise InputError("--run shows a run that has its own testbed: leave --topology and --program out")
        follower = Follower(Path(args.run))
        with listener_on(args.listen or LOOPBACK, args.port) as listener:
            return _serve_run(follower, listener, everybody=args.listen is not None)
    require_root("live")
    for number in heeded():
        signal.signal(number, interrupt)
    names = Names.from_environment()
    listener = listener_on(args.listen or LOOPBACK, args.port)
    with listener, _testbed(names, args.topology, args.target, args.program):
        network = FabricNetwork.attached(names)
        return _serve(network, listener, everybody=args.listen is not None)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """During the ``with`` block, ignore the signals that normally end the program."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _testbed(names: Names, topology: str | None, target: str, program: str | None) -> Iterator[None]:
    """Join the running testbed. If no testbed runs, start one, and take it down at the end."""
    found = state.read(names)
    if found is not None and found.alive(names):
        call(names, "status", verify=False)  # raises an error if the testbed does not answer
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
        if running.bring_up(topology or "lab", target, program=program):
            raise MachineError("the testbed did not come up")
        with running.down_if_killed(names):
            yield
    finally:
        with _uninterrupted():
            found = state.read(names)
            if found is not None and found.alive(names):
                running.take_down()


def _serve_run(follower: Follower, listener: socket.socket, *, everybody: bool) -> int:
    stand_back()  # lower priority: the training needs the CPU
    access = access_for(everybody=everybody)
    server = Server(config_of(run_application(follower, access)))
    print(f"open {address_of(listener)}?token={access.watcher}")
    print("end with Ctrl-C", flush=True)

    async def serve() -> None:
        end_with_signals(server)
        await server.serve(sockets=[listener])

    asyncio.run(serve())
    return 0


def _serve(network: FabricNetwork, listener: socket.socket, *, everybody: bool) -> int:
    access = access_for(everybody=everybody)
    recording = Recording(
        about(network.fabric, network.target, version(), usual_plan(network.target).model_dump())
    )
    hub = Hub(recording)
    session = Session(network, usual_plan(network.target), hub.put)
    app = application(session, hub, recording, access)
    address = address_of(listener)
    file = network.names.state_dir / "live.json"
    with _address_left(file, address, access.watcher):
        print_addresses(address, access)
        serve_session(app, listener, hub, session)
    if session.gone is not None:
        print(f"mrclab: {session.gone}")
        return 1
    return 0


@contextmanager
def _address_left(file: Path, address: str, token: str) -> Iterator[None]:
    """During the ``with`` block, keep the page's address in a file for `mrclab watch`. Only root can read it.

    Raise InputError if the testbed has a page already. The traffic of two pages would use the same QPNs.
    """
    import fcntl  # exists on Unix only

    with open(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="utf-8") as kept:
        try:
            fcntl.flock(kept, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError("this testbed has a live page already: end it first") from None
        kept.truncate()
        json.dump({"address": address, "token": token}, kept)
        kept.flush()
        try:
            yield
        finally:
            file.unlink(missing_ok=True)
