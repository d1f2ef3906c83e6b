"""Commands for this machine and its testbed: up, down, cli, clean, doctor.

As a program (``python -m mrclab.running PREFIX STATE_DIR RUN_ID``), this module takes down the testbed of a
run. `down_if_killed` starts this program in a watchdog process.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mrclab.control import call
from mrclab.hosts import compiled
from mrclab.linux.errors import InputError, MachineError, SwitchError
from mrclab.linux.life import signals
from mrclab.linux.processes import Process, ending
from mrclab.switches.target import require_target
from mrclab.testbed import clean as cleaning
from mrclab.testbed import state
from mrclab.testbed.doctor import Check, report, require_machine
from mrclab.testbed.doctor import doctor as checks
from mrclab.testbed.names import Names, require_root
from mrclab.testbed.network import attach
from mrclab.testbed.ownership import Watchdog, command, require_ours, take, take_claimed
from mrclab.topologies import load_fabric
from mrclab.topologies.model import require_live

DOWN_TIMEOUT_S = 60.0


def up(args: argparse.Namespace) -> int:
    """Carry out ``mrclab up``."""
    return bring_up(args.topology, args.target, program=args.program, force=args.force)


def bring_up(topology: str, target: str, *, program: str | None = None, force: bool = False) -> int:
    """Bring a fabric up in a separate process (the daemon) and return after its switches are programmed.

    ``program`` is the user's switch program. It is checked and compiled before anything is started. With
    ``force``, a running testbed is taken down first, even if it belongs to another user. If the start fails,
    everything is taken down again.
    """
    require_live(load_fabric(topology))
    require_machine()
    require_target(target)
    own = [] if program is None else _own_program(Path(program))
    names = Names.from_environment()
    found = state.read(names)
    if force:
        take_claimed(names)
        if found is not None and found.alive(names):
            take_down(force=True)
    logs = _logs()
    logs.mkdir(parents=True, exist_ok=True)
    read_fd, write_fd = os.pipe()
    # The daemon must not inherit stdout: a reader of mrclab's output would wait until the daemon ends.
    with open(logs / "daemon.log", "ab") as log:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "mrclab.daemon", topology, target, str(logs), str(write_fd), *own],
            pass_fds=[write_fd],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    os.close(write_fd)
    try:
        return _follow(daemon, read_fd)
    except (KeyboardInterrupt, signals.Ended):
        with signals.passed_on(daemon.terminate):
            daemon.terminate()
            daemon.wait()
        raise


def _logs() -> Path:
    return Path("/var/log") / Names.from_environment().prefix


def _own_program(program: Path) -> list[str]:
    """Compile the program and return the path of its JSON, as an argument for the daemon."""
    from mrclab.controller.programs import load_program

    return [str(load_program(program, _logs() / "program").json.resolve())]


def _follow(daemon: subprocess.Popen[bytes], read_fd: int) -> int:
    """Print the daemon's messages until it is ready or reports an error. Return the exit code."""
    with os.fdopen(read_fd, encoding="utf-8") as status:
        for line in status:
            words = json.loads(line)
            if "say" in words:
                print(words["say"])
            elif "ready" in words:
                print("up: mrclab status | cli | fault | restore | down")
                return 0
            else:
                daemon.wait()
                print(f"mrclab: {words['error']}", file=sys.stderr)
                return {"input": InputError.exit_code, "machine": MachineError.exit_code}.get(
                    words["kind"], 1
                )
    raise SwitchError(f"the testbed's process {ending(daemon.wait())} before the testbed was up")


def down(args: argparse.Namespace) -> int:
    """Carry out ``mrclab down``."""
    return take_down(force=args.force)


def take_down(*, force: bool = False) -> int:
    """Take the testbed down.

    Raise InputError if no testbed is up or, without ``force``, if the testbed has another owner.
    """
    names = Names.from_environment()
    found = require_ours(names, force=force)
    take(names, found)
    print(f"down: {_take_down(names)[0]}")
    return 0


@contextmanager
def down_if_killed(names: Names) -> Iterator[None]:
    """Start a watchdog process, which takes the testbed down if this process is killed in the ``with``."""
    owner = Process.of(os.getpid(), command())
    watchdog = Watchdog(names, state.require(names).run_id, owner, "mrclab.running")
    try:
        yield
    finally:
        watchdog.stop()


def down_after(names: Names, run_id: str) -> None:
    """Take down the testbed of a run. Do nothing if it is already down or a newer testbed is up."""
    found = state.read(names)
    if found is not None and found.run_id == run_id:
        _take_down(names)


def _take_down(names: Names) -> tuple[str, cleaning.Removed]:
    """Let the daemon take its testbed down, then remove everything that is left of the testbed.

    If the daemon is dead, remove the whole testbed. Return the outcome in a few words, and the removed parts.
    """
    asked = ""
    try:
        daemon = os.pidfd_open(call(names, "down")["pid"])
    except (InputError, OSError):
        pass
    else:
        with os.fdopen(daemon):
            ended, _, _ = select.select([daemon], [], [], DOWN_TIMEOUT_S)
        asked = "everything is gone" if ended else f"it did not end within {DOWN_TIMEOUT_S:g} s"
    removed = cleaning.clean(names)
    return (f"{asked}, {removed}" if asked and removed else asked or str(removed)), removed


def cli(_args: argparse.Namespace) -> int:
    """Open Mininet's prompt on the running testbed."""
    from mrclab.testbed.mininet_classes import FabricCLI

    net = attach()
    try:
        FabricCLI(net)
    finally:
        net.stop()
    return 0


def clean(args: argparse.Namespace) -> int:
    """Remove the testbed that is up and the remains of dead testbeds. Print the removed parts.

    Raise InputError if the testbed has another owner and ``--force`` is not given.
    """
    require_root("clean")
    names = Names.from_environment()
    found = state.read(names)
    if found is not None and found.alive(names):
        take(names, require_ours(names, force=args.force))
        print(f"taking down the testbed that is up (topology {found.topology}, since {found.since})")
    words, removed = _take_down(names)
    print(f"clean: {words}")
    for line in removed.lines():
        print(f"  {line}")
    state.taken_file(names).unlink(missing_ok=True)
    return 0


def doctor(_args: argparse.Namespace) -> int:
    """Print every check. Return the exit code, which is 3 if a required part is missing."""
    found = (*checks(), Check("MRC core", compiled.in_use(), False, compiled.describe()))
    print(report(found))
    return MachineError.exit_code if any(check.required and not check.ok for check in found) else 0


if __name__ == "__main__":
    down_after(Names(sys.argv[1], Path(sys.argv[2])), sys.argv[3])
