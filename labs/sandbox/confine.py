"""Take all rights from this process, and limit what a student's code can reach and use.

On Linux the process gets new namespaces. It then sees only a file system with Python, the packages that
students import and a copy of their files. It has no network and sees no other process. Root makes the
namespaces with its own rights and then becomes the user nobody. An ordinary user needs user namespaces. On
every system except Windows, memory, processor time, files and processes are limited.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from mrclab.linux.system import end_with_parent, is_linux, is_root, libc

resource: ModuleType | None
try:
    import resource  # imported early: the user nobody may be unable to read Python's files
except ImportError:  # on Windows
    resource = None
NOBODY = 65534
_NEW_NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000  # mount, uts, ipc, pid, net
_NEW_USER = 0x10000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_NO_NEW_PRIVS, _CAPBSET_DROP = 38, 24
_CAPABILITY_VERSION_3 = 0x20080522
_LARGEST_CAPABILITY = 63
_SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/etc/ld.so.cache", "/etc/localtime")
_DEVICES = ("/dev/null", "/dev/urandom", "/dev/zero")
_DISK = "size=64m,nr_inodes=4k,mode=755"
_UNSEEN_ROOMS = ("scale", "experiments")


@dataclass(frozen=True)
class Limits:
    """The limits of a student's code. The code may start ``processes`` further processes and threads."""

    memory_bytes: int = 2 << 30
    cpu_s: int = 600
    file_bytes: int = 16 << 20
    open_files: int = 64
    processes: int = 0


def confine(folder: Path, stage: Path, package: Path, limits: Limits) -> str:
    """Take all rights from this process. Return "", or the reason if the process keeps some rights.

    ``folder`` is a copy of the student's folder, which the code may change. ``stage`` is an empty folder, on
    which the new file system is mounted. ``package`` is the folder of mrclab. The calling process must have
    one thread. A child process continues the work of the calling process, in the directory ``folder``.
    """
    missing = _isolate(folder, stage, package) if is_linux() else "only Linux has namespaces"
    if missing:
        os.chdir(folder)
        if is_root():
            _become_nobody()
    elif is_root():
        _become_nobody()
        libc().unshare(_NEW_USER)  # optional: other processes of nobody then do not count for the limit
    _drop_capabilities()
    _limit(limits)
    return missing


def _isolate(folder: Path, stage: Path, package: Path) -> str:
    machine = os.uname().machine
    if machine not in _PIVOT_ROOT:
        return f"the file system cannot be closed on {machine}"
    user, group = os.geteuid(), os.getegid()
    wanted = _NEW_NAMESPACES if user == 0 else _NEW_NAMESPACES | _NEW_USER
    if libc().unshare(wanted) != 0:
        return f"no namespaces here: {os.strerror(ctypes.get_errno())}"
    try:
        if user != 0:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{NOBODY} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{NOBODY} {group} 1")
        _go_on_in_child()
        _close_file_system(folder, stage, package, _PIVOT_ROOT[machine])
    except OSError as error:
        return f"the file system cannot be closed: {error}"
    return ""


def _go_on_in_child() -> None:
    """Fork twice, because only a child is in the new process namespace. Return in the second process there.

    The first process there only waits. It ends with its parent, and all others of the namespace end with it.
    A student's code can undo `end_with_parent` for its own process, but has no rights over the first one.
    """
    for _ in range(2):
        child = os.fork()
        end_with_parent()
        if child:
            os.closerange(0, 1024)  # so that the pipes close as soon as the child ends
            _, status = os.waitpid(child, 0)
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _close_file_system(folder: Path, stage: Path, package: Path, pivot_root: int) -> None:
    _mount(None, "/", None, _REC | _PRIVATE)
    _mount("tmpfs", str(stage), "tmpfs", _NOSUID | _NODEV, _DISK)
    for path in _readable(package):
        _show(path, stage)
    for path in _unseen(package):
        inside = stage / path.relative_to("/")
        if inside.is_dir():
            _mount("tmpfs", str(inside), "tmpfs", _NOSUID | _NODEV | _RDONLY, "size=4k")
    for device in _DEVICES:
        _show(Path(device), stage, devices=True)
    here = stage / folder.relative_to("/")
    shutil.copytree(folder, here)
    scratch = stage / "tmp"
    scratch.mkdir(exist_ok=True)
    for path in (scratch, here, *here.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    os.chdir(stage)
    _check(libc().syscall(pivot_root, b".", b"."), "pivot_root")
    _check(libc().umount2(b".", _DETACH), "umount")
    os.chdir(folder)


def _readable(package: Path) -> list[Path]:
    """Return the folders that the code needs: the libraries of the system and of Python, and mrclab."""
    python = {Path(path) for path in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    paths = [Path(path) for path in sys.path if path and os.path.exists(path)]
    packages = [
        path
        for path in paths
        if path.name in ("site-packages", "dist-packages") or python & {path, *path.parents}
    ]
    own = [package, *(path.resolve() for path in package.iterdir() if path.is_symlink() and path.is_dir())]
    compiled = package.parent / ".venv" / "mrclab-core"
    wanted = [*map(Path, _SYSTEM), *_library_folders(python), *packages, *own, compiled]
    return _outermost(path for path in wanted if path.exists())


def _library_folders(python: Iterable[Path]) -> list[Path]:
    return [prefix / name for prefix in python for name in ("lib", "lib64", "DLLs")]


def _outermost(paths: Iterable[Path]) -> list[Path]:
    kept: list[Path] = []
    for path in sorted(set(paths)):
        if not any(other in path.parents for other in kept):
            kept.append(path)
    return kept


def _unseen(package: Path) -> list[Path]:
    """Return the folders of mrclab that a student's code must not read: solutions, and the labs' models."""
    return [
        *(package / "labs").resolve().glob("[0-9]*-*"),
        *((package / room).resolve() for room in _UNSEEN_ROOMS),
    ]


def _show(path: Path, stage: Path, *, devices: bool = False) -> None:
    """Make a path readable in the new file system, but not writable."""
    inside = stage / path.relative_to("/")
    inside.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        inside.symlink_to(os.readlink(path))
        return
    if path.is_dir():
        inside.mkdir(exist_ok=True)
    else:
        inside.touch()
    _mount(str(path), str(inside), None, _BIND | _REC)
    locked = os.statvfs(inside).f_flag & (_NODEV | _NOEXEC)
    nodev = 0 if devices else _NODEV
    _mount(None, str(inside), None, _REMOUNT | _BIND | _RDONLY | _NOSUID | nodev | locked)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, options)]
    done = libc().mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3])
    _check(done, f"mount {target}")


def _check(done: int, what: str) -> None:
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _drop_capabilities() -> None:
    if not is_linux():
        return
    for capability in range(_LARGEST_CAPABILITY + 1):
        libc().prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    libc().capset(header, none)
    libc().prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    end_with_parent()  # a change of rights has undone the earlier call


def _limit(limits: Limits) -> None:
    if resource is None:
        return
    bounds: Sequence[tuple[str, int]] = (
        ("RLIMIT_AS", limits.memory_bytes),
        ("RLIMIT_CPU", limits.cpu_s),
        ("RLIMIT_FSIZE", limits.file_bytes),
        ("RLIMIT_NOFILE", limits.open_files),
        ("RLIMIT_CORE", 0),
        ("RLIMIT_MSGQUEUE", 0),
        ("RLIMIT_NPROC", limits.processes),
    )
    for name, bound in bounds:
        number = getattr(resource, name, None)
        if number is None:
            continue
        _, hard = resource.getrlimit(number)
        least = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        with suppress(ValueError, OSError):  # macOS refuses some limits
            resource.setrlimit(number, (least, least))
