"""``mrclab exec``: run a program on one host or on all hosts, with the host's NIC ``mrc0``.

The program's requests to the NIC can be recorded. With --all, each process has its rank, the number of ranks
and the first host's address in the environment variables of PyTorch (such as RANK) and Open MPI.
"""

from __future__ import annotations

import io
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from mrclab.hosts.service import addresses
from mrclab.hosts.workloads.recorded import header
from mrclab.linux.errors import InputError
from mrclab.linux.processes import first_to_end
from mrclab.native.build import VERBS, libraries
from mrclab.testbed import state
from mrclab.testbed.names import require_root
from mrclab.testbed.network import FabricNetwork
from mrclab.testbed.programs import nic, view
from mrclab.topologies import Fabric

SOCKET_VARIABLE = "MRCLAB_NIC"
HOST_VARIABLE = "MRCLAB_HOST"


def run_program(host: str | None, words: list[str], user_name: str | None) -> int:
    """Replace this process by the program. Raise InputError if the host, user or program does not exist."""
    host, network, user = checked(host, words, user_name, "h0 -- ib_write_bw")
    fabric, names = network.fabric, network.names
    built = libraries()
    view.provide_management(names, fabric)
    socket_path = nic.provide(network, host)
    if user is not None:
        nic.allow(socket_path, user.pw_uid)
    folder = state.work_dir(names) / "view"
    folder.mkdir(mode=0o755, exist_ok=True)
    here = os.getcwd()
    library_path = view.enter(names, fabric, host, folder, built)
    os.chdir(here)
    environment = network.environment | {SOCKET_VARIABLE: str(socket_path), HOST_VARIABLE: host}
    _prepend(environment, "LD_PRELOAD", str(library_path / VERBS))
    _prepend(environment, "LD_LIBRARY_PATH", str(library_path))
    if user is not None:
        os.initgroups(user.pw_name, user.pw_gid)
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
        environment |= {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores SIGPIPE; the program must not inherit it
    try:
        os.execvpe(words[0], words, environment)
    except OSError as error:
        raise InputError(f"cannot run '{words[0]}': {error.strerror}") from None


def checked(
    host: str | None, words: list[str], user_name: str | None, example: str
) -> tuple[str, FabricNetwork, pwd.struct_passwd | None]:
    """Return the host, the fabric and the user. Raise InputError if host, user or program is unknown."""
    if host is None or not words:
        raise InputError(f"exec needs a program: mrclab exec {example}")
    require_root("exec ...")
    network = FabricNetwork.attached()
    known = [each.name for each in network.fabric.hosts]
    if host not in known:
        raise InputError(f"no host '{host}' in topology {network.fabric.name}: {', '.join(known)}")
    user = None if user_name is None else _user(user_name)
    if shutil.which(words[0]) is None:
        raise InputError(f"no program '{words[0]}' here")
    return host, network, user


def _user(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(int(name)) if name.isascii() and name.isdigit() else pwd.getpwnam(name)
    except KeyError:
        raise InputError(f"no user '{name}' here") from None


def _prepend(environment: dict[str, str], name: str, value: str) -> None:
    environment[name] = f"{value}:{environment[name]}" if environment.get(name) else value


def record_program(host: str | None, words: list[str], user: str | None, file: Path) -> int:
    """Run a program on a host. Return its exit code, or 128 plus the signal's number if a signal ended it.

    While the program runs, write all requests of the host's programs to the NIC into ``file``. Raise
    InputError if the host, user or program is unknown, or the file cannot be written.
    """
    host, network, _ = checked(host, words, user, "--record FILE h0 -- ib_write_bw")
    libraries()
    with _open_recording(file) as out:
        out.write(header(network.fabric, host).encode())
        with nic.recorded(nic.provide(network, host), out.fileno()):
            options = [] if user is None else ["--user", user]
            argv = [sys.executable, "-m", "mrclab", "exec", *options, host, "--", *words]
            return _run(argv)


def _open_recording(file: Path) -> io.FileIO:
    try:
        return file.open("wb", buffering=0)
    except OSError as error:
        raise InputError(f"--record: cannot write '{file}': {error.strerror}") from None


def _run(argv: list[str]) -> int:
    """Run a command in the foreground. Forward this process's signals to the command."""
    with subprocess.Popen(argv) as child:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _frame: child.send_signal(number))
        for number in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)  # the terminal also sends these signals to the program
        code = child.wait()
    return 128 - code if code < 0 else code


def part(file: Path, host: str) -> Path:
    """Return the path of the file with one host's part of a recording."""
    return file.with_name(f"{file.name}.{host}")


def join(file: Path, parts: list[Path]) -> None:
    """Join the parts of a recording into one file and remove the parts. Raise InputError if a write fails."""
    try:
        with file.open("wb") as out:
            for each in parts:
                with each.open("rb") as source:
                    shutil.copyfileobj(source, out)
                each.unlink()
    except OSError as error:
        raise InputError(f"--record: cannot write '{file}': {error.strerror}") from None


MASTER_PORT = "29500"
GRACE_S = 10.0
WAIT_S = 3600.0


def rank_environment(fabric: Fabric, rank: int) -> dict[str, str]:
    """Return the environment variables of a rank. Rank n runs on the fabric's host number n."""
    size = str(len(fabric.hosts))
    return {
        "RANK": str(rank),
        "WORLD_SIZE": size,
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": str(addresses.ipv4(fabric, fabric.hosts[0].name)),
        "MASTER_PORT": MASTER_PORT,
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": size,
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    }


def run_everywhere(words: Sequence[str], user: str | None, file: Path | None = None) -> int:
    """Run a program on every host. Return 0 after all programs have succeeded.

    If a program fails, end the other programs. Return the failed program's exit code, or 128 plus the
    signal's number if a signal ended it. If ``file`` is given, write all programs' requests to NICs into it.
    """
    if not words:
        raise InputError("exec needs a program: mrclab exec --all -- PROGRAM")
    require_root("exec ...")
    network = FabricNetwork.attached()
    fabric = network.fabric
    # Check here what all children would refuse, so that a mistake is one line.
    checked(fabric.hosts[0].name, list(words), user, "--all -- PROGRAM")
    if file is not None:
        _open_recording(file).close()
    libraries()
    view.provide_management(network.names, fabric)
    options = [] if user is None else ["--user", user]
    parts = {} if file is None else {host.name: part(file, host.name) for host in fabric.hosts}
    running: dict[int, subprocess.Popen[bytes]] = {}
    try:
        for rank, host in enumerate(fabric.hosts):
            more = [*options, "--record", str(parts[host.name])] if parts else options
            child = subprocess.Popen(
                [sys.executable, "-m", "mrclab", "exec", *more, host.name, "--", *words],
                env=os.environ | rank_environment(fabric, rank),
                stdin=None if rank == 0 else subprocess.DEVNULL,
            )
            running[child.pid] = child
        while running:
            pid = first_to_end(list(running), WAIT_S)
            if pid is not None and (code := running.pop(pid).wait()):
                return 128 - code if code < 0 else code
        return 0
    finally:
        _end(list(running.values()))
        if file is not None:
            join(file, [path for path in parts.values() if path.exists()])


def _end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """End children with SIGTERM. Children that still run `GRACE_S` seconds later get SIGKILL."""
    for child in children:
        child.terminate()
    for child in children:
        try:
            child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
