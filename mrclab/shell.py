"""``mrclab shell``: open p4runtime-shell on a switch of the running testbed.

The fabric's controller stays primary, so the shell connects as a backup. P4Runtime accepts every write that
has the primary's election id, and the shell uses this id in its writes.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from mrclab.control import call
from mrclab.linux.errors import InputError, MachineError
from mrclab.linux.processes import inside
from mrclab.shell_environment import ShellEnvironmentError, shell_python
from mrclab.testbed.names import Names

LAUNCHER = Path(__file__).with_name("shell_launcher.py")


def shell(args: argparse.Namespace) -> int:
    """Open the shell and return its exit code. If standard input is a script, run its lines.

    Raise InputError if no testbed is up, or if the testbed has no such switch. Raise MachineError if the
    shell's virtual environment cannot be made.
    """
    switch: str = args.switch
    names = Names.from_environment()
    switches = call(names, "status")["switches"]
    if switch not in switches:
        known = list(switches)
        raise InputError(f"no switch '{switch}' here: it has {known[0]} to {known[-1]}")
    try:
        python = shell_python()
    except ShellEnvironmentError as error:
        raise MachineError(str(error)) from None
    found = switches[switch]
    arguments = [switch, str(found["device_id"]), found["p4runtime"], str(found["election_id"])]
    command = inside(names.fabric, [str(python), str(LAUNCHER), *arguments])
    return subprocess.run(command, check=False).returncode
