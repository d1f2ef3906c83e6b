"""Build the test programs in C, and run them on hosts of a fabric with the NIC services that they use."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE

import pytest

from mrclab.native.build import MRC, SOURCE, libraries
from mrclab.testbed.programs.nic import log_file
from tests.support.command import Up
from tests.support.paths import ROOT

HEADER = Path("/usr/include/infiniband/verbs.h")
SOURCES = ROOT / "tests" / "support" / "programs"
TIMEOUT_S = 120
needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None or not HEADER.exists(),
    reason="needs a C compiler and libibverbs' header (apt install gcc libibverbs-dev)",
)


@contextmanager
def built(**programs: str) -> Iterator[dict[str, Path]]:
    """Build programs from sources in `SOURCES`; yield their paths by name. Only ``mrc`` uses lib_mrc.so."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # other users also run the programs
        made = next(path.parent for path in libraries() if path.name == MRC)
        mrc = ["-DMRC", f"-I{SOURCE}", f"-L{made}", f"-l:{MRC}", f"-Wl,-rpath-link,{made}", "-libverbs"]
        for program, source in programs.items():
            options = mrc if program == "mrc" else ["-libverbs", "-ldl"]
            argv = ["cc", "-O2", "-Wall", "-Werror", "-Wl,--as-needed", "-o", folder / program]
            subprocess.run([*argv, SOURCES / f"{source}.c", *options], check=True)
        yield {program: folder / program for program in programs}


@contextmanager
def running(
    up: Up,
    host: str,
    *words: str,
    environment: Mapping[str, str] | None = None,
    limits: Sequence[str] = (),
) -> Iterator[subprocess.Popen[str]]:
    """Run a program on a host. ``words`` are options of `mrclab exec`, ``--``, the program and its arguments.

    ``limits`` is a command that starts `mrclab` with fewer rights.
    """
    at = words.index("--")
    argv = [*limits, *up.mrclab.command("exec", *words[:at], host, *words[at:])]
    variables = {**up.mrclab.environment, **(environment or {})}
    with subprocess.Popen(
        argv, env=variables, stdin=PIPE, stdout=PIPE, stderr=subprocess.STDOUT, text=True, cwd="/"
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def end(process: subprocess.Popen[str]) -> str:
    """Wait until a program has ended, and return its output."""
    output, _ = process.communicate(timeout=TIMEOUT_S)
    return output


def cut_at_half(
    up: Up, link: str, client: subprocess.Popen[str], server: subprocess.Popen[str], report: str
) -> int:
    """Cut a link when the client has sent half of its messages, and return the time of the cut.

    The client was started with ``pause``. Both programs must print ``report`` and end before the link is
    restored.
    """
    assert client.stdin is not None
    assert client.stdout is not None
    assert client.stdout.readline() == "connected\n"
    assert client.stdout.readline() == "half\n"
    cut_ns = time.monotonic_ns()
    up.mrclab.ok("fault", "blackhole", link)
    try:
        client.stdin.write("\n")
        client.stdin.flush()
        assert report in end(client)
        assert report in end(server)
    finally:
        up.mrclab.ok("restore", "--all")
    assert (client.returncode, server.returncode) == (0, 0)
    return cut_ns


def await_listener(up: Up, host: str, port: int, process: subprocess.Popen[str]) -> bool:
    """Wait until a program listens on a host. Return False if the program ends first."""
    argv = ["ip", "netns", "exec", up.host_namespace(host), "ss", "-Hltn", f"sport = :{port}"]
    deadline = time.monotonic() + TIMEOUT_S
    while not subprocess.run(argv, capture_output=True, check=True).stdout:
        if process.poll() is not None:
            return False
        assert time.monotonic() < deadline, "it does not listen"
        time.sleep(0.05)
    return True


def await_retired(up: Up, host: str, since_ns: int) -> None:
    """Wait until a host's NIC logs that it retired a path later than ``since_ns``."""
    deadline = time.monotonic() + TIMEOUT_S
    while not _retired(log_file(up.mrclab.names, host), since_ns):
        assert time.monotonic() < deadline, "no path was retired"
        time.sleep(0.05)


def _retired(log: Path, since_ns: int) -> bool:
    try:
        header, *lines = map(json.loads, log.read_text().splitlines())
    except (FileNotFoundError, ValueError):
        return False  # the log does not exist yet, or its last line is incomplete
    began_ns = header["trace"]["common_fields"]["reference_time_ns"]
    return any(
        line.get("name") == "mrc:path:ev_retired" and began_ns + line["time"] * 1e6 > since_ns
        for line in lines
    )


def service(up: Up, host: str) -> int:
    """Return the pid of a host's NIC service. Raise StopIteration if none runs."""
    found = subprocess.run(
        ["pgrep", "-f", "mrclab.hosts.service"], capture_output=True, text=True, check=False
    ).stdout.split()
    here = os.stat(f"/var/run/netns/{up.host_namespace(host)}").st_ino
    for pid in found:
        with suppress(OSError):
            if os.stat(f"/proc/{pid}/ns/net").st_ino == here:
                return int(pid)
    raise StopIteration(host)


def end_service(up: Up, host: str) -> None:
    """End a host's NIC service if one runs, so that the next program starts a new service."""
    with suppress(StopIteration):
        os.kill(service(up, host), signal.SIGKILL)
