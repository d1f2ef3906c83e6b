"""The memory of a program, through descriptors of /proc/PID/mem and /proc/PID/maps that it opened itself.

Opening its own needs no privilege; the descriptors end with the program's address space, so that they never
reach another process of the same pid.
"""

from __future__ import annotations

import errno
import os

SMALL_BYTES = 256
TAIL_BYTES = 8
LOCAL_WRITE, REMOTE_WRITE = 1, 2


class MemoryFaultError(OSError):
    """The program has no such memory."""


class ProgramMemory:
    """Reads and writes of one program's memory."""

    def __init__(self, mem_fd: int, maps_fd: int, pid: int) -> None:
        """Take both descriptors. Raise PermissionError if they are not those of process ``pid``.

        Files are compared, not their paths: a program in a mount namespace of its own below a chroot has
        paths that begin outside of this process's root.
        """
        self._mem, self._maps = mem_fd, maps_fd
        for fd, name in ((mem_fd, "mem"), (maps_fd, "maps")):
            try:
                own = os.path.samestat(os.fstat(fd), os.stat(f"/proc/{pid}/{name}"))
            except FileNotFoundError:
                own = False  # the process has ended
            if not own:
                raise PermissionError(errno.EPERM, f"not the program's own {name}")

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self._mem)
        os.close(self._maps)

    def read(self, address: int, length: int) -> bytes:
        """Return bytes of the program. Raise MemoryFaultError if it does not have them all."""
        try:
            data = os.pread(self._mem, length, address)
        except (OSError, OverflowError) as error:
            raise MemoryFaultError(errno.EFAULT, str(error)) from None
        if len(data) != length:
            raise MemoryFaultError(errno.EFAULT, f"no memory at {address + len(data):#x}")
        return data

    def write(self, address: int, data: bytes | memoryview) -> None:
        """Write into the program's memory. Raise MemoryFaultError if it has none there.

        The last bytes of a small write come last: a program may poll them.
        """
        length = len(data)
        try:
            if TAIL_BYTES < length <= SMALL_BYTES:
                head = length - TAIL_BYTES
                done = os.pwrite(self._mem, data[:head], address)
                done += os.pwrite(self._mem, data[head:], address + head)
            else:
                done = os.pwrite(self._mem, data, address)
        except (OSError, OverflowError) as error:
            raise MemoryFaultError(errno.EFAULT, str(error)) from None
        if done != length:
            raise MemoryFaultError(errno.EFAULT, f"no memory at {address + done:#x}")

    def allows(self, address: int, length: int, *, writable: bool) -> bool:
        """Return whether the program itself may read, or also write, all of these bytes.

        Call it when memory is registered: the kernel lets us write even to read-only memory.
        """
        end = address + length
        os.lseek(self._maps, 0, os.SEEK_SET)
        with os.fdopen(os.dup(self._maps), "rb") as maps:
            for line in maps:
                span, rights = line.split(None, 2)[:2]
                first, last = (int(part, 16) for part in span.split(b"-"))
                if first > address:
                    return False
                if address < last:
                    if rights[:1] != b"r" or (writable and rights[1:2] != b"w"):
                        return False
                    address = last
                    if address >= end:
                        return True
        return False


class RegionPlace:
    """The memory of a region, as the core writes into it (`mrclab.hosts.rdma.memory.Place`)."""

    def __init__(self, memory: ProgramMemory, address: int) -> None:
        self._memory = memory
        self._address = address

    def __setitem__(self, where: slice, data: bytes | memoryview, /) -> None:
        self._memory.write(self._address + where.start, data)
