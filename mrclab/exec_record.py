"""``mrclab exec --record``: a program's requests to its NIC, as a file that ``kind: recorded`` replays."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

from mrclab.exec import checked
from mrclab.hosts.workloads.recorded import header
from mrclab.linux.errors import InputError
from mrclab.native.build import libraries
from mrclab.testbed.programs import nic


def record_program(host: str | None, words: list[str], user: str | None, file: Path) -> int:
    """Run a program on a host; return its exit code, 128 and the signal's number for a signal.

    The requests of the host's programs go to ``file`` while it runs. Raise InputError for a bad host,
    user, program or file.
    """
    host, network, _ = checked(host, words, user, "--record FILE h0 -- ib_write_bw")
    libraries()
    try:
        out = file.open("wb", buffering=0)
    except OSError as error:
        raise InputError(f"--record: cannot write '{file}': {error.strerror}") from None
    with out:
        out.write(header(network.fabric, host).encode())
        with nic.recorded(nic.provide(network, host), out.fileno()):
            options = [] if user is None else ["--user", user]
            argv = [sys.executable, "-m", "mrclab", "exec", *options, host, "--", *words]
            return _run(argv)


def _run(argv: list[str]) -> int:
    """Run a command in the foreground: signals for this process are passed on to it."""
    with subprocess.Popen(argv) as child:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _frame: child.send_signal(number))
        for number in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)  # the terminal sends them to the program as well
        code = child.wait()
    return 128 - code if code < 0 else code


def part(file: Path, host: str) -> Path:
    """Return the file of one host's part of a recording."""
    return file.with_name(f"{file.name}.{host}")


def join(file: Path, parts: list[Path]) -> None:
    """Put parts together into one recording, and remove them. Raise InputError if it cannot be written."""
    try:
        with file.open("wb") as out:
            for each in parts:
                with each.open("rb") as source:
                    shutil.copyfileobj(source, out)
                each.unlink()
    except OSError as error:
        raise InputError(f"--record: cannot write '{file}': {error.strerror}") from None
