"""Runs a scenario: a process and a fabric for each transport, repetition after repetition.

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

from experiments.measure.repetition import Repetition
from experiments.spec.model import Scenario
from experiments.spec.transports import Transport
from linux.errors import InputError, MachineError
from testbed.running import Say

Step = Callable[[int], None]
PR_SET_PDEATHSIG = 1
END_TIMEOUT_S = 60.0
AGAIN_SHARE = 3
"""Of so many repetitions one may be made again, where others had taken the CPUs: runs are to end in time."""


class SessionError(RuntimeError):
    """A transport's process could not do its part."""


def run_scenario(
    scenario: Scenario, out: Path, *, say: Say, step: Step
) -> tuple[str, dict[str, list[Repetition]]]:
    """Run every transport; return the target's name and each transport's repetitions.

    ``say`` gets what is going on, ``step`` how many trials (or repetitions, without trials) are done in all.
    Everything is taken down again, also on Ctrl-C. Raises InputError, MachineError and SessionError.
    """
    found: dict[str, list[Repetition]] = {}
    target = ""
    done = 0
    again = -(-len(scenario.transports) * scenario.repetitions // AGAIN_SHARE)
    for transport in scenario.transports:
        say(f"{transport.name}: {transport.described}")
        found[transport.name] = []
        with _session(scenario, transport, out, again) as messages:
            for kind, value in messages:
                if kind == "say":
                    say(f"  {value}")
                elif kind == "target":
                    target = target or value  # routers have none
                elif kind == "step":
                    done += 1
                    step(done)
                else:
                    again -= len(value.set_aside)
                    found[transport.name].append(value)
    return target, found


@contextmanager
def _session(
    scenario: Scenario, transport: Transport, out: Path, again: int
) -> Iterator[Iterator[tuple[str, Any]]]:
    """Yield the messages of a transport's process, which is ended in order when the ``with`` is left."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_main, args=(scenario, transport, out, again, theirs), name=transport.name)
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
    """Have the process take its fabric down, where it does not do so already."""
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


def _main(scenario: Scenario, transport: Transport, out: Path, again: int, messages: Connection) -> None:
    """Run one transport's repetitions; ``again`` of them may be made a second time."""
    logging.getLogger("finsy").setLevel(logging.ERROR)  # it warns of every switch that does not speak gNMI
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, _leave)
    # The parent decides what Ctrl-C ends: it ends this process by SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _run(scenario, transport, out, again, messages)
    except InputError as error:
        messages.send(("input", str(error)))
    except MachineError as error:
        messages.send(("machine", str(error)))
    except Exception as error:
        (out / "logs" / f"{transport.name}-error.log").write_text(traceback.format_exc(), encoding="utf-8")
        messages.send(("error", f"{transport.name}: {type(error).__name__}: {error}"))
    else:
        messages.send(("done", None))


def _run(scenario: Scenario, transport: Transport, out: Path, again: int, messages: Connection) -> None:
    from experiments.measure.repetition import disturbed, in_place_of, measure
    from experiments.run.fabrics import bring_up
    from experiments.run.repetition import RepetitionRunner, drop_captures
    from topologies import one_plane

    def measured(number: int) -> Repetition:
        evidence = runner.run(number)
        found = measure(evidence)
        if not scenario.measure.capture:
            drop_captures(out, evidence)
        return found

    def say(text: str) -> None:
        messages.send(("say", text))

    def step() -> None:
        messages.send(("step", None))

    fabric = scenario.fabric()
    logs = out / "logs" / transport.name
    logs.mkdir(parents=True, exist_ok=True)
    with bring_up(
        one_plane(fabric) if transport.one_plane else fabric, scenario.target, transport, logs
    ) as running:
        messages.send(("target", running.target_name))
        runner = RepetitionRunner(running, scenario, transport, out, say, step)
        for number in range(scenario.repetitions):
            repetition = measured(number)
            # Trials are made again one by one, not whole repetitions.
            if again and disturbed(repetition) and not scenario.sequences:
                again -= 1
                repetition = in_place_of(repetition, measured(number))
            messages.send(("repetition", repetition))
            if not scenario.sequences:
                step()
