"""Access to a program's memory by descriptors from the program. Here, this process is the program."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mrclab.hosts.service.shared_memory import MemoryFaultError, ProgramMemory, RegionPlace
from tests.support.paths import ROOT

IN_A_CHROOT = """
import ctypes, os, socket, sys
from mrclab.hosts.service.shared_memory import ProgramMemory
libc = ctypes.CDLL(None, use_errno=True)
NEWNS, BIND, RECURSIVE, PRIVATE = 0x20000, 1 << 12, 1 << 14, 1 << 18
def check(code):
    if code:
        raise OSError(ctypes.get_errno(), "refused")
root = sys.argv[1].encode()
check(libc.unshare(NEWNS))
check(libc.mount(b"none", b"/", b"none", RECURSIVE | PRIVATE, None))
check(libc.mount(b"/", root, b"none", BIND | RECURSIVE, None))
os.chroot(root)
os.chdir("/")
ours, theirs = socket.socketpair()
program = os.fork()
if not program:
    ours.close()
    check(libc.unshare(NEWNS))
    fds = [os.open("/proc/self/mem", os.O_RDWR), os.open("/proc/self/maps", os.O_RDONLY)]
    socket.send_fds(theirs, [b"x"], fds)
    theirs.recv(1)
    os._exit(0)
theirs.close()
_, fds, _, _ = socket.recv_fds(ours, 1, 2)
assert not os.readlink(f"/proc/self/fd/{fds[0]}").startswith("/proc"), "this checks nothing"
ProgramMemory(*fds, program)
ours.send(b"x")
os.waitpid(program, 0)
print("taken")
"""
"""A service and its program below a chroot. The program has a separate mount namespace."""
PAGE = mmap.PAGESIZE


def _descriptors() -> tuple[int, int]:
    return os.open("/proc/self/mem", os.O_RDWR), os.open("/proc/self/maps", os.O_RDONLY)


def _own() -> ProgramMemory:
    return ProgramMemory(*_descriptors(), os.getpid())


def _address(area: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(area))


@pytest.mark.parametrize("length", [1, 8, 9, 64, 256, 257, PAGE])
def test_what_is_written_is_read(length: int) -> None:
    memory, area = _own(), mmap.mmap(-1, 2 * PAGE)
    data = os.urandom(length)
    RegionPlace(memory, _address(area))[3 : 3 + length] = memoryview(data)
    assert area[: length + 4] == bytes(3) + data + bytes(1)
    assert memory.read(_address(area) + 3, length) == data
    memory.close()


def test_memory_that_is_gone_is_a_fault() -> None:
    memory = _own()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    hole = libc.mmap(None, ctypes.c_size_t(2 * PAGE), 3, 0x22, -1, ctypes.c_long(0))
    libc.munmap(ctypes.c_void_p(hole + PAGE), ctypes.c_size_t(PAGE))
    for bad in (0, hole + PAGE, 1 << 62, (1 << 64) - 1):
        with pytest.raises(MemoryFaultError):
            memory.read(bad, 8)
        with pytest.raises(MemoryFaultError):
            memory.write(bad, b"12345678")
    with pytest.raises(MemoryFaultError, match="no memory at"):
        memory.read(hole, 2 * PAGE)
    memory.close()


def test_a_region_needs_the_rights_that_the_program_has() -> None:
    memory = _own()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    area = libc.mmap(None, ctypes.c_size_t(3 * PAGE), 3, 0x22, -1, ctypes.c_long(0))
    libc.mprotect(ctypes.c_void_p(area + PAGE), ctypes.c_size_t(PAGE), 1)
    assert memory.allows(area, PAGE, writable=True)
    assert memory.allows(area, 3 * PAGE, writable=False)
    assert not memory.allows(area, PAGE + 1, writable=True)
    assert not memory.allows(area + PAGE, 8, writable=True)
    assert not memory.allows(0, 8, writable=False)
    libc.munmap(ctypes.c_void_p(area), ctypes.c_size_t(3 * PAGE))
    assert not memory.allows(area, 8, writable=False)
    memory.close()


def test_only_the_program_s_own_descriptors_are_taken() -> None:
    mem, maps = _descriptors()
    for fds, pid in (((mem, maps), os.getpid() + 1), ((maps, mem), os.getpid()), ((0, maps), os.getpid())):
        with pytest.raises(PermissionError):
            ProgramMemory(*fds, pid)
    os.close(mem)
    os.close(maps)


@pytest.mark.root
def test_a_program_below_a_chroot_is_known_by_its_files(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", IN_A_CHROOT, str(tmp_path)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("taken\n", 0), done.stderr
