"""``mrclab exec``: run a program on a host of the running fabric, with the host's NIC ``mrc0``."""

from __future__ import annotations

import os
import pwd
import shutil
import signal

from mrclab.linux.errors import InputError
from mrclab.native.build import VERBS, libraries
from mrclab.testbed import state
from mrclab.testbed.names import require_root
from mrclab.testbed.network import FabricNetwork
from mrclab.testbed.programs import management, nic, view

SOCKET_VARIABLE = "MRCLAB_NIC"
HOST_VARIABLE = "MRCLAB_HOST"


def run_program(host: str | None, words: list[str], user_name: str | None) -> int:
    """Become the program; return only by an exception. Raise InputError for a bad host, user or program."""
    host, network, user = checked(host, words, user_name, "h0 -- ib_write_bw")
    fabric, names = network.fabric, network.names
    built = libraries()
    management.provide(names, fabric)
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
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and the program would inherit that
    try:
        os.execvpe(words[0], words, environment)
    except OSError as error:
        raise InputError(f"cannot run '{words[0]}': {error.strerror}") from None


def checked(
    host: str | None, words: list[str], user_name: str | None, example: str
) -> tuple[str, FabricNetwork, pwd.struct_passwd | None]:
    """Return the host, the running fabric and the user. Raise InputError for a bad host, user or program."""
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
        return pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except KeyError:
        raise InputError(f"no user '{name}' here") from None


def _prepend(environment: dict[str, str], name: str, value: str) -> None:
    environment[name] = f"{value}:{environment[name]}" if environment.get(name) else value
