"""Runs a comparison: a process and a fabric for each transport, repetition after repetition, one result.

Each transport has a process of its own because gRPC's threads stay in the network namespace that they were
first used in, so that a process can only ever work on one fabric.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

from experiments.spec.comparison import Comparison
from experiments.spec.transports import Transport
from linux.errors import InputError, MachineError

Say = Callable[[str], None]
Step = Callable[[int], None]
PR_SET_PDEATHSIG = 1
END_TIMEOUT_S = 60.0
AGAIN_SHARE = 3
"""Of so many repetitions one may be made again, where others had taken the CPUs: runs are to end in time."""


class SessionError(RuntimeError):
    """A transport's process could not do its part."""


def run_sessions(
    comparison: Comparison, out: Path, *, say: Say, step: Step
) -> tuple[str, dict[str, list[dict[str, Any]]]]:
    """Runs every transport; returns the target's name and each transport's repetitions.

    ``say`` is told what is going on, ``step`` how many repetitions are done in all. Everything is taken down
    again, also on Ctrl-C. Raises InputError, MachineError and SessionError.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    target = ""
    done = 0
    again = -(-len(comparison.transports) * comparison.repetitions // AGAIN_SHARE)
    for transport in comparison.transports:
        say(f"{transport.name}: {transport.described}")
        found[transport.name] = []
        with _session(comparison, transport, out, again) as messages:
            for kind, value in messages:
                if kind == "say":
                    say(f"  {value}")
                elif kind == "target":
                    target = target or value  # routers have none
                else:
                    again -= len(value["set_aside"])
                    found[transport.name].append(value)
                    done += 1
                    step(done)
    return target, found


@contextmanager
def _session(
    comparison: Comparison, transport: Transport, out: Path, again: int
) -> Iterator[Iterator[tuple[str, Any]]]:
    """The messages of a transport's process, which is ended in order when the ``with`` is left."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(
        target=_main, args=(comparison, transport, out, again, theirs), name=transport.name
    )
    handlers = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        process.start()
        theirs.close()
        yield _messages(ours)
    finally:
        if process.is_alive():
            _end(process)
        process.join(END_TIMEOUT_S)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _end(process: Any) -> None:
    """Has the process take its fabric down, where it is not on its way out already."""
    process.join(0.5)
    if process.is_alive():
        process.terminate()


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _messages(connection: Connection) -> Iterator[tuple[str, Any]]:
    while True:
        try:
            kind, value = connection.recv()
        except EOFError:
            raise SessionError("a transport's process ended before it was done") from None
        if kind == "done":
            return
        if kind == "input":
            raise InputError(value)
        if kind == "machine":
            raise MachineError(value)
        if kind == "error":
            raise SessionError(value)
        yield kind, value


def _main(comparison: Comparison, transport: Transport, out: Path, again: int, messages: Connection) -> None:
    """Entry point of a transport's process; ``again`` repetitions may be made a second time."""
    logging.getLogger("finsy").setLevel(logging.ERROR)  # it warns of every switch that speaks no gNMI
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, _leave)
    # The runner decides what Ctrl-C ends: it ends this process by SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from experiments.run.fabrics import bring_up
    from experiments.run.session import Session, disturbed, fabric_for, in_place_of, repetition_dict

    try:
        fabric = fabric_for(comparison, transport)
        logs = out / "logs" / transport.name
        logs.mkdir(parents=True, exist_ok=True)
        with bring_up(fabric, comparison.target, transport, logs) as lab:
            messages.send(("target", lab.target_name))
            session = Session(lab, comparison, transport, out)
            for number in range(comparison.repetitions):
                repetition = session.run(number)
                if again and disturbed(repetition):
                    again -= 1
                    repetition = in_place_of(repetition, session.run(number))
                messages.send(("repetition", repetition_dict(repetition)))
    except InputError as error:
        messages.send(("input", str(error)))
    except MachineError as error:
        messages.send(("machine", str(error)))
    except Exception as error:
        (out / "logs" / f"{transport.name}-error.log").write_text(traceback.format_exc(), encoding="utf-8")
        messages.send(("error", f"{transport.name}: {type(error).__name__}: {error}"))
    else:
        messages.send(("done", None))
