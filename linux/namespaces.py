"""Named network namespaces: make, enter and remove them without a helper process.

A named namespace outlives its creator. If it is removed, the kernel also removes its interfaces, qdiscs and
tc programs. Before a namespace gets its name, a marker file with its identity is written to the state
directory. mrclab removes only a namespace whose identity is in a marker file.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mrclab.linux.errors import InputError, MachineError
from mrclab.linux.system import libc

T = TypeVar("T")

NETNS_DIR = Path("/var/run/netns")  # the folder in which iproute2 looks for names
CLONE_NEWNET = 0x40000000
MS_BIND, MS_REC, MS_SHARED = 1 << 12, 1 << 14, 1 << 20
MNT_DETACH = 2
PERMISSION = "run it as root with CAP_SYS_ADMIN and CAP_NET_ADMIN (docker run --privileged)"
LO_INDEX = 1


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        if number in (errno.EPERM, errno.EACCES):
            raise MachineError(f"{what}: {os.strerror(number)}", PERMISSION)
        raise OSError(number, f"{what}: {os.strerror(number)}")


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a namespace, independent of its name: device and inode of the kernel's nsfs."""

    device: int
    inode: int

    def __str__(self) -> str:
        return f"{self.device}:{self.inode}"


def own_identity() -> Identity:
    """Return the identity of the namespace in which the calling thread is."""
    return _identity(Path("/proc/thread-self/ns/net"))


def _identity(path: Path) -> Identity:
    stat = path.stat()
    return Identity(stat.st_dev, stat.st_ino)


def identity(name: str) -> Identity | None:
    """Return the identity of the namespace of that name, or None."""
    try:
        return _identity(NETNS_DIR / name)
    except OSError:
        return None


def exists(name: str) -> bool:
    """Return True if a namespace of that name exists. An ordinary file with that name is no namespace."""
    found = identity(name)
    return found is not None and found.device == own_identity().device


def in_thread(work: Callable[[], T]) -> T:
    """Run a function in a new thread, which may change namespaces, and return its result."""
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body, name="mrclab-namespace")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def enter(name: str) -> None:
    """Move the calling thread and its future children into a namespace.

    Raise FileNotFoundError if it does not exist, and OSError if the kernel refuses.
    """
    fd = os.open(NETNS_DIR / name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(libc().setns(fd, CLONE_NEWNET), f"cannot enter namespace {name}")
    finally:
        os.close(fd)


@contextmanager
def inside(name: str) -> Iterator[None]:
    """Put the calling thread into a namespace within the ``with``; other threads stay where they are.

    Sockets that are opened and processes that are started inside keep that namespace.
    """
    back = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(name)
        try:
            yield
        finally:
            _check(libc().setns(back, CLONE_NEWNET), "cannot return from a namespace")
    finally:
        os.close(back)


def unshare() -> None:
    """Move the calling thread into a new, unnamed namespace, which ends with the thread."""
    _check(libc().unshare(CLONE_NEWNET), "cannot make a namespace")


def open_fd(name: str) -> int:
    """Return an open descriptor of a namespace; the caller closes it."""
    return os.open(NETNS_DIR / name, os.O_RDONLY | os.O_CLOEXEC)


def _share_directory() -> None:
    """Mount the folder of names as iproute2 does, so that other mount namespaces see new names, too."""
    NETNS_DIR.mkdir(mode=0o755, parents=True, exist_ok=True)
    directory = os.fsencode(NETNS_DIR)
    fd = os.open(NETNS_DIR, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        import fcntl  # only Unix has this module

        fcntl.flock(fd, fcntl.LOCK_EX)
        if libc().mount(b"", directory, b"none", MS_SHARED | MS_REC, None) == 0:
            return
        _check(
            libc().mount(directory, directory, b"none", MS_BIND | MS_REC, None), f"cannot bind {NETNS_DIR}"
        )
        _check(libc().mount(b"", directory, b"none", MS_SHARED | MS_REC, None), f"cannot share {NETNS_DIR}")
    finally:
        os.close(fd)


def _quiet() -> None:
    """Switch the kernel's IPv6 off, so that it sends no neighbour discovery or MLD in the fabric."""
    from mrclab.linux import rtnetlink

    for scope in ("all", "default"):
        with suppress(FileNotFoundError):  # a kernel without IPv6
            Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6").write_text("1")
    with rtnetlink.opened() as route, rtnetlink.refusals("cannot bring up lo"):
        route.link("set", index=LO_INDEX, state="up")


class Markers:
    """A record of the namespaces that mrclab made: a directory with one file for each namespace.

    Each file has the name of a namespace and contains the namespace's identity."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def names(self) -> list[str]:
        """Return the names of all marked namespaces, including namespaces that no longer exist."""
        try:
            return sorted(path.name for path in self.directory.iterdir())
        except FileNotFoundError:
            return []

    def write(self, name: str, which: Identity) -> None:
        """Mark a namespace as made by mrclab. Call this before the namespace gets its name."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.directory / name).write_text(f"{which}\n")

    def remove(self, name: str) -> None:
        """Remove the mark of a namespace."""
        (self.directory / name).unlink(missing_ok=True)

    def ours(self, name: str) -> bool:
        """Return True if mrclab made the namespace of this name, or began to make it."""
        try:
            marked = (self.directory / name).read_text().strip()
        except OSError:
            return False
        found = identity(name)
        if found is None:
            return False
        if str(found) == marked:
            return True
        # A creator that was killed before the mount has left an empty file. This file counts as ours, too.
        path = NETNS_DIR / name
        return found.device != own_identity().device and path.is_file() and path.stat().st_size == 0

    def identities(self) -> dict[Identity, str]:
        """Return the names of the existing namespaces that mrclab made, by identity."""
        found = {}
        for name in self.names():
            which = identity(name)
            if which is not None and self.ours(name):
                found[which] = name
        return found


def create(name: str, markers: Markers) -> None:
    """Make a namespace with its loopback up and IPv6 off, and mark it as made by mrclab.

    Raise InputError if the name is taken, MachineError without permission, OSError if the kernel refuses.
    """
    path = NETNS_DIR / name
    if path.exists():
        raise InputError(
            f"a network namespace '{name}' is there already and is not a testbed's: delete or rename it"
        )
    _share_directory()

    def make() -> None:
        unshare()
        markers.write(name, own_identity())
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
        source, target = b"/proc/thread-self/ns/net", os.fsencode(path)
        _check(libc().mount(source, target, b"none", MS_BIND, None), f"cannot name namespace {name}")
        _quiet()

    in_thread(make)


def delete(name: str, markers: Markers) -> bool:
    """Remove a namespace that mrclab made, and its marker. Return whether there was such a namespace.

    The kernel deletes the namespace when no process runs in it. If another program made the namespace of this
    name, the namespace stays.
    """
    ours = markers.ours(name)
    if ours:
        path = os.fsencode(NETNS_DIR / name)
        if libc().umount2(path, MNT_DETACH) != 0 and ctypes.get_errno() not in (errno.EINVAL, errno.ENOENT):
            _check(-1, f"cannot remove namespace {name}")
        (NETNS_DIR / name).unlink(missing_ok=True)
    markers.remove(name)
    return ours
