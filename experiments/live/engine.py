"""Runs a scenario: a process and a fabric for each transport, repetition after repetition.

Each transport has a separate process because gRPC's threads stay in the network namespace that they were
first used in, so that a process can only ever work on one fabric.

The findings of a repetition are written into its directory as soon as it is done, and if it is ended early, a
signal included, the findings until then. So a run that is ended loses no finished work.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mrclab.experiments.measure.repetition import Repetition, load_repetition, save_repetition
from mrclab.experiments.run.outcome import Outcome, repetition_directory
from mrclab.experiments.spec.model import Scenario
from mrclab.hosts.transports.table import Transport
from mrclab.linux.errors import InputError, MachineError, MrclabError, reason
from mrclab.linux.life import signals
from mrclab.linux.processes import ending
from mrclab.linux.scheduling import go_before_ordinary
from mrclab.linux.system import end_with_parent
from mrclab.testbed.names import Names
from mrclab.testbed.ownership import claimed
from mrclab.testbed.running import Say

Step = Callable[[int], None]
END_TIMEOUT_S = 90.0
"""How long a transport's process may take to end: it measures its evidence and takes its fabric down."""
AGAIN_SHARE = 3
"""Of so many repetitions one may be made again, if other programs took the CPUs, or a process stood still or
did not start: runs are to end in time."""


class SessionError(MrclabError, RuntimeError):
    """A transport's process could not do its part."""


def run_scenario(scenario: Scenario, out: Path, outcome: Outcome, *, say: Say, step: Step) -> None:
    """Run every transport, and put the findings of each repetition into ``outcome`` as it ends.

    ``say`` gets progress messages, ``step`` how many trials (or repetitions, without trials) are done in all.
    Everything is taken down again, also on Ctrl-C. The testbed's names are held until the last transport has
    ended. Raise InputError, MachineError and SessionError.
    """
    with claimed(Names.from_environment()):
        _run_transports(scenario, out, outcome, say, step)


def _run_transports(scenario: Scenario, out: Path, outcome: Outcome, say: Say, step: Step) -> None:
    done = 0
    again = -(-len(scenario.transports) * scenario.repetitions // AGAIN_SHARE)
    each = scenario.steps // (len(scenario.transports) * scenario.repetitions)
    for transport in scenario.transports:
        numbers = outcome.left(scenario, transport)
        done += each * (scenario.repetitions - len(numbers))
        step(done)
        if not numbers:
            continue
        say(f"{transport.name}: {transport.described}")
        with _session(scenario, transport, out, numbers, again, outcome) as messages:
            for kind, value in messages:
                if kind == "say":
                    say(f"  {value}")
                elif kind == "target":
                    outcome.target = outcome.target or value  # routers have none
                elif kind == "step":
                    done += 1
                    step(done)
                elif kind == "again":
                    again -= 1


@contextmanager
def _session(
    scenario: Scenario,
    transport: Transport,
    out: Path,
    numbers: Sequence[int],
    again: int,
    outcome: Outcome,
) -> Iterator[Iterator[tuple[str, Any]]]:
    """Yield the messages of a transport's process, which is ended in order when the ``with`` is left."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(
        target=_main, args=(scenario, transport, out, numbers, again, theirs), name=transport.name
    )

    def messages() -> Iterator[tuple[str, Any]]:
        while True:
            try:
                kind, value = ours.recv()
            except EOFError:
                process.join(END_TIMEOUT_S)
                code = process.exitcode
                how = "does not end" if code is None else ending(code)
                raise SessionError(f"{transport.name}: its process {how} before it was done") from None
            if kind == "began":
                outcome.began = True
            elif kind == "repetition":
                found = load_repetition(repetition_directory(out, transport.name, value))
                outcome.add(transport.name, found)
            if kind == "done":
                return
            if kind == "error":
                raise _ERRORS[value[0]](value[1])
            yield kind, value

    with signals.as_exceptions():
        try:
            process.start()
            theirs.close()
            yield messages()
        except BaseException:
            go_before_ordinary()  # as the process does that it ends
            raise
        finally:
            with signals.passed_on(lambda: process.terminate() if process.is_alive() else None):
                _end(process, messages())


_ERRORS: dict[str, type[MrclabError]] = {
    "input": InputError,
    "machine": MachineError,
    "failed": SessionError,
}


def _end(process: Any, messages: Iterator[tuple[str, Any]]) -> None:
    """Have the process measure its evidence and take its fabric down, and read its last messages."""
    process.join(0.5)
    if process.is_alive():
        process.terminate()
    with contextlib.suppress(MrclabError):  # the cause of the run's end is known
        for _ in messages:
            pass
    process.join(END_TIMEOUT_S)
    if process.is_alive():
        process.kill()  # the testbed's watchdog removes its remains
        process.join()


def _main(
    scenario: Scenario,
    transport: Transport,
    out: Path,
    numbers: Sequence[int],
    again: int,
    messages: Connection,
) -> None:
    """Make a transport's repetitions of these numbers; ``again`` of them may be made a second time."""
    logging.getLogger("finsy").setLevel(logging.ERROR)  # it warns of every switch that does not speak gNMI
    # The parent handles Ctrl-C: it ends this process by SIGTERM, as its death does, too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def send(kind: str, value: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent is gone, and this process about to end
            messages.send((kind, value))

    # On a busy machine the agents leave little of the CPUs, and it takes some of it to end them.
    with signals.first_only(at_once=go_before_ordinary):
        end_with_parent(signal.SIGTERM)
        parent = multiprocessing.parent_process()
        if parent is None or os.getppid() != parent.pid:
            return  # the parent has died already
        try:
            _run(scenario, transport, out, numbers, again, send)
        except InputError as error:
            send("error", ("input", str(error)))
        except MachineError as error:
            send("error", ("machine", str(error)))
        except signals.Ended as ended:
            send("error", ("failed", f"{transport.name}: {reason(ended)}"))
        except Exception as error:
            with contextlib.suppress(OSError):
                log = out / "logs" / f"{transport.name}-error.log"
                log.write_text(traceback.format_exc(), encoding="utf-8", newline="\n")
            send("error", ("failed", f"{transport.name}: {reason(error)}"))
        else:
            send("done", None)


def _run(
    scenario: Scenario,
    transport: Transport,
    out: Path,
    numbers: Sequence[int],
    again: int,
    send: Callable[[str, object], None],
) -> None:
    from mrclab.controller.programs import pipeline_of
    from mrclab.experiments.live.fabrics import bring_up
    from mrclab.experiments.live.repetition import Attempts, RepetitionRunner, drop_captures
    from mrclab.experiments.measure.repetition import measure
    from mrclab.topologies import one_plane

    def measured(number: int) -> Repetition:
        evidence = runner.run(number)
        found = measure(evidence)
        if not scenario.measure.capture:
            drop_captures(out, evidence)
        return found

    def say(text: str) -> None:
        send("say", text)

    def step() -> None:
        send("step", None)

    fabric = scenario.fabric()
    logs = out / "logs" / transport.name
    logs.mkdir(parents=True, exist_ok=True)
    if transport.one_plane:
        fabric = one_plane(fabric)
    pipeline = pipeline_of(scenario.program, logs)
    with bring_up(fabric, scenario.target, transport, logs, pipeline) as running:
        send("target", running.target_name)
        runner = RepetitionRunner(running, scenario, transport, out, say, step)
        attempts = Attempts(measured, again, say, lambda: send("again", None))
        try:
            for number in numbers:
                send("began", None)
                repetition = attempts.repetition(number, trials=bool(scenario.sequences))
                save_repetition(repetition_directory(out, transport.name, number), repetition)
                send("repetition", number)
                if runner.interrupted is not None:
                    raise runner.interrupted
                if not scenario.sequences:
                    step()
        except signals.Ended:
            if by := running.network.taken:
                raise SessionError(f"the testbed was {by}") from None
            raise
        except Exception as error:
            if why := running.ended():
                raise SessionError(why) from error
            raise
