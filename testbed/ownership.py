"""Whose testbed it is, who may take it down, and cleaning up after an owner that was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from mrclab.linux.children import environment
from mrclab.linux.errors import InputError
from mrclab.linux.processes import Process
from mrclab.testbed import state
from mrclab.testbed.names import RUN_VARIABLE, Names
from mrclab.testbed.state import State

MOST_CHARACTERS = 60


def user() -> str:
    """Return who runs this process: who called sudo, or the process's own user."""
    if name := os.environ.get("SUDO_USER"):
        return name
    import pwd  # Unix has it alone

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def command() -> str:
    """Return the command that this process carries out, shortened."""
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name
    words = " ".join([name or "python", *sys.argv[1:]])
    return words if len(words) <= MOST_CHARACTERS else f"{words[:MOST_CHARACTERS]}..."


def whose(found: State) -> str:
    """Return a few words on whose testbed it is."""
    owner = found.owner
    by = (
        f"'{owner.what}' of {found.user} (process {owner.pid})"
        if owner is not None
        else found.user or "nobody"
    )
    return f"the testbed that is up (topology {found.topology}, since {found.since}) belongs to {by}"


def require_ours(names: Names, *, force: bool) -> State:
    """Return the testbed that is up, for a command that would disturb its owner.

    Raise InputError if no testbed is up, or if it is an experiment's or another user's, unless ``force``.
    """
    found = state.require(names)
    if not force and not (found.stays and found.user == user()):
        raise InputError(f"{whose(found)}: wait until it is free, or take it with --force")
    return found


def take(names: Names, found: State) -> None:
    """Record the process that is about to take a testbed from its owner, for the owner's message."""
    by = f"taken down by '{command()}' of {user()} (process {os.getpid()}) at {state.now()}"
    with state.locked(names):
        now = state.read(names)
        if now is None or now.run_id != found.run_id:
            return
        state.write(names, replace(now, taken=by))
        if found.stays and found.user != user():
            state.taken_file(names).write_text(f"that of {found.user} was {by}\n", encoding="utf-8")


def taken(names: Names, run_id: str) -> str:
    """Return by whom a testbed is being taken down, or nothing where nobody but its owner does."""
    found = state.read(names)
    return found.taken if found is not None and found.run_id == run_id else ""


class Watchdog:
    """A process next to a testbed that runs a module, to clean up, if the owner is killed.

    It is no child of the run by name, so that ending all processes of the run spares it.
    """

    def __init__(
        self, names: Names, run_id: str, owner: Process, module: str = "mrclab.testbed.after_owner"
    ) -> None:
        env = environment()
        env.pop(RUN_VARIABLE, None)
        clean_up = [
            sys.executable,
            "-m",
            module,
            names.prefix,
            str(names.state_dir.resolve()),
            run_id,
        ]
        wait = [sys.executable, "-S", "-m", "mrclab.linux.life.after_death", str(owner.pid), str(owner.start)]
        nothing = subprocess.DEVNULL
        self._process = subprocess.Popen(
            [*wait, *clean_up],
            env=env,
            cwd="/",
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
            start_new_session=True,
        )

    def stop(self) -> None:
        """End it: the testbed is gone, or left running on purpose."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        self._process.wait()
