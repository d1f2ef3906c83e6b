"""Run a scenario on a live fabric: a process and a fabric for each transport, one repetition after another.

Each transport has a separate process, because a process can work on one fabric only: gRPC's threads stay in
the network namespace in which they were first used.

The findings of a repetition are written into its directory as soon as the repetition is done. If a signal or
an error ends the repetition early, the findings up to then are written.
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
"""How long a transport's process may take to end: to compute the measured values and to remove its fabric."""
AGAIN_SHARE = 3
"""Of this number of repetitions, at most one is made again. This limits the length of a run. A repetition is
made again if other programs used the CPUs, or if a process was stopped or did not start."""


class SessionError(MrclabError, RuntimeError):
    """The process of a transport failed."""


def run_scenario(scenario: Scenario, out: Path, outcome: Outcome, *, say: Say, step: Step) -> None:
    """Run every transport, and add the findings of each ended repetition to ``outcome``.

    ``say`` gets progress messages. ``step`` gets the number of finished trials or, if there are no trials, of
    finished repetitions. All fabrics are removed at the end, also on Ctrl-C. Until then no other run can use
    the testbed's names. Raise InputError for a wrong scenario, MachineError if the machine lacks something,
    and SessionError if a process or the testbed ends early.
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
                    outcome.target = outcome.target or value  # a fabric of routers has no target
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
    """Start a transport's process, and yield its messages. At the end of the ``with``, end the process.

    Before its end, the process computes the measured values and removes its fabric.
    """
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
            # Raise the priority, as the transport's process does: ending a fabric needs CPU time.
            go_before_ordinary()
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
    """Let the process compute the measured values and remove its fabric; read its last messages."""
    process.join(0.5)
    if process.is_alive():
        process.terminate()
    with contextlib.suppress(MrclabError):  # an earlier error is reported already
        for _ in messages:
            pass
    process.join(END_TIMEOUT_S)
    if process.is_alive():
        process.kill()  # the testbed's watchdog then removes the fabric
        process.join()


def _main(
    scenario: Scenario,
    transport: Transport,
    out: Path,
    numbers: Sequence[int],
    again: int,
    messages: Connection,
) -> None:
    """Run the repetitions ``numbers`` of a transport. At most ``again`` repetitions may be made twice."""
    logging.getLogger("finsy").setLevel(logging.ERROR)  # finsy warns of every switch without gNMI
    # The parent handles Ctrl-C and then ends this process by SIGTERM. If the parent dies, the kernel sends
    # SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def send(kind: str, value: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent has ended, so this process ends soon
            messages.send((kind, value))

    # At a signal, this process raises its priority, because agents may use most of the CPU time.
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
