"""Memory that the NIC service and a program share: the layout of records, the rings, the program's memory.

The layout is the interface between the service and the C libraries: records, requests and limits, in one
table. `header` writes the table as a C header for `native/`; `record` returns the same layout for Python. All
numbers are in the byte order of the machine. The size of every record is a multiple of 8.

Rings hold the requests that a program posts, and the completions that the service returns. The service
creates each memory object and seals its size, so that a program cannot truncate it. A request is copied
before it is checked. The service checks the program's counters, which wrap at 2^32.

The service accesses a program's memory through descriptors of /proc/PID/mem and /proc/PID/maps. The program
opens these files itself, because this needs no privilege. The descriptors become invalid with the program's
address space, so they never refer to another process with the same pid.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

VERSION: Final = 3
"""The version of this layout and of the requests. The service refuses a library of another version."""

LIMITS: Final[Mapping[str, int]] = {
    "MAX_SGE": 16,
    "MAX_INLINE": 256,
    "MAX_SEND_WR": 8192,
    "MAX_RECV_WR": 8192,
    "MAX_CQE": 1 << 17,
    "MAX_QP": 1024,
    "MAX_CQ": 1024,
    "MAX_MR": 1 << 16,
    "MAX_CHANNEL": 256,
    "MAX_MESSAGE": 1 << 28,
    "GIDS": 4,
}
"""Limits for each program. MAX_MESSAGE is in bytes."""

RECORDS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "request": (("op", "I"), ("version", "I"), *((f"a{n}", "Q") for n in range(8)), ("gid", "16s")),
    "reply": (("error", "i"), ("count", "I"), *((f"v{n}", "Q") for n in range(8)), ("data", "96s")),
    "work": (
        *(("wr_id", "Q"), ("remote_addr", "Q"), ("rkey", "I"), ("imm", "I")),
        *(("opcode", "B"), ("flags", "B"), ("num_sge", "H"), ("length", "I"), ("data", "256s")),
    ),
    "sge": (("addr", "Q"), ("length", "I"), ("lkey", "I")),
    "receive": (("wr_id", "Q"),),
    "completion": (
        *(("wr_id", "Q"), ("qp_num", "I"), ("status", "I"), ("opcode", "I"), ("byte_len", "I")),
        *(("imm", "I"), ("flags", "I"), ("retired", "I"), ("cookie", "I")),
    ),
    "event": (("type", "I"), ("id", "I")),
}
"""The fields of each record, with their codes in Python's `struct`."""

OPS: Final = (
    *("HELLO", "QUERY_PORT", "REG_MR", "DEREG_MR", "CREATE_CHANNEL", "DESTROY_CHANNEL"),
    *("CREATE_CQ", "DESTROY_CQ", "CREATE_QP", "MODIFY_QP", "DESTROY_QP", "ALLOW", "LIMIT_QP"),
    *("PROFILE_QP", "CONTROL", "RECORD"),
)
"""Requests, numbered from 1."""

CONTROLS: Final = (
    *("QUERY_DEVICE", "QUERY_PORT", "MODIFY_PORT", "QUERY_FORMAT", "MODIFY_FORMAT", "QUERY_EVS"),
    *("MODIFY_EVS", "QUERY_CC", "MODIFY_CC", "WATCH_EVS", "POLL_EVS", "PROBE", "PROBED", "FORGET_PROBES"),
)
"""Requests of a controller: the first argument of CONTROL, numbered from 1."""

WORDS: Final[Mapping[str, int]] = {
    # The page of a session has a counter of posted requests, and two flags: "the service sleeps" and "the
    # program sleeps".
    "SESSION_POSTED": 0,
    "SESSION_ASLEEP": 16,
    "SESSION_NAPS": 32,
    "SESSION_BYTES": 4096,
    # The memory of a queue pair: counters of both rings, then the send ring, then the receive ring.
    "QP_SQ_PROD": 0,
    "QP_SQ_CONS": 16,
    "QP_RQ_PROD": 32,
    "QP_RQ_CONS": 48,
    "QP_STATE": 64,
    "QP_RING_OFFSET": 512,
    # The memory of a completion queue.
    "CQ_PROD": 0,
    "CQ_CONS": 16,
    "CQ_ARMED": 32,
    "CQ_OVERRUN": 48,
    "CQ_RING_OFFSET": 256,
}
"""Offsets of 32-bit words, counted in words. Names with `_BYTES` and `_OFFSET` are in bytes.

The service and the program write to different cache lines.
"""

OPCODES: Final[Mapping[str, int]] = {"WORK_WRITE": 0, "WORK_WRITE_IMM": 1}
FLAGS: Final[Mapping[str, int]] = {"WORK_SIGNALED": 1, "WORK_INLINE": 2, "WORK_SOLICITED": 4, "WORK_FENCE": 8}

_C_TYPES = {"I": "uint32_t", "i": "int32_t", "Q": "uint64_t", "H": "uint16_t", "B": "uint8_t"}


@cache
def record(name: str) -> struct.Struct:
    """Return the Struct that packs a record. Raise KeyError for a record that does not exist."""
    return struct.Struct("=" + "".join(code for _, code in RECORDS[name]))


def op(name: str) -> int:
    """Return the number that identifies a kind of request."""
    return OPS.index(name) + 1


def header() -> str:
    """Return the table of records, requests and limits as a C header."""
    lines = [
        "/* Made from hosts/service/shared_memory.py: do not edit. */",
        "#pragma once",
        "#include <stdint.h>",
    ]
    numbers = {"VERSION": VERSION, **LIMITS, **WORDS, **OPCODES, **FLAGS}
    numbers |= {f"OP_{name}": op(name) for name in OPS}
    numbers |= {f"CONTROL_{name}": number for number, name in enumerate(CONTROLS, 1)}
    lines += [f"#define WIRE_{name} {value}u" for name, value in numbers.items()]
    for name, fields in RECORDS.items():
        lines.append(f"struct wire_{name} {{")
        for field, code in fields:
            if code.endswith("s"):
                lines.append(f"    uint8_t {field}[{code[:-1]}];")
            else:
                lines.append(f"    {_C_TYPES[code]} {field};")
        lines.append("};")
        size = record(name).size
        lines.append(f'_Static_assert(sizeof(struct wire_{name}) == {size}, "wire_{name}");')
    return "\n".join(lines) + "\n"


_MASK = 0xFFFFFFFF
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_WORK, _RECEIVE, _COMPLETION = record("work"), record("receive"), record("completion")
_SQ_PROD, _SQ_CONS = WORDS["QP_SQ_PROD"], WORDS["QP_SQ_CONS"]
_RQ_PROD, _RQ_CONS = WORDS["QP_RQ_PROD"], WORDS["QP_RQ_CONS"]
_CQ_PROD, _CQ_CONS, _CQ_ARMED = WORDS["CQ_PROD"], WORDS["CQ_CONS"], WORDS["CQ_ARMED"]
_CQ_OVERRUN = WORDS["CQ_OVERRUN"]
_BARRIER = threading.Lock()


class RingError(ValueError):
    """A program's counters are invalid."""


def fence() -> None:
    """Order all earlier stores before all later loads, by the atomic operations of a lock."""
    _BARRIER.acquire()
    _BARRIER.release()


def power_of_two(count: int) -> int:
    """Return the smallest power of two that is at least ``count``."""
    return 1 << max(0, count - 1).bit_length()


class SharedMemory:
    """A sealed memory object. This process maps the object, and the program gets the object's descriptor."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.fd = os.memfd_create("mrclab-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, self.size_bytes)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
            self.map = mmap.mmap(self.fd, self.size_bytes)
        except BaseException:
            os.close(self.fd)
            raise
        self.words = memoryview(self.map).cast("I")

    def release_fd(self) -> int:
        """Return the descriptor, which the caller must close. The mapping stays."""
        fd, self.fd = self.fd, -1
        return fd

    def close(self) -> None:
        """Unmap the object in this process. The program's mapping stays."""
        self.words.release()
        self.map.close()
        if self.fd >= 0:
            os.close(self.release_fd())


class WorkRings:
    """The send and receive rings of a queue pair."""

    def __init__(self, send_slots: int, receive_slots: int) -> None:
        self.send_slots, self.receive_slots = power_of_two(send_slots), power_of_two(receive_slots)
        self._send_at = WORDS["QP_RING_OFFSET"]
        self._receive_at = self._send_at + self.send_slots * _WORK.size
        self.memory = SharedMemory(self._receive_at + self.receive_slots * _RECEIVE.size)
        self._words = self.memory.words
        self._sent = self._received = 0

    def posted(self) -> int:
        """Return the number of waiting send requests. Raise RingError if it exceeds the size of the ring."""
        count = self._words[_SQ_PROD] - self._sent & _MASK
        if count > self.send_slots:
            raise RingError(f"{count} requests in a ring of {self.send_slots}")
        return count

    def take(self) -> tuple[Any, ...]:
        """Remove and return a copy of the oldest send request. There must be one."""
        slot = self._sent & self.send_slots - 1
        work = _WORK.unpack_from(self.memory.map, self._send_at + slot * _WORK.size)
        self._sent = self._words[_SQ_CONS] = self._sent + 1 & _MASK
        return work

    def take_receive(self) -> int | None:
        """Remove the oldest posted receive and return its ``wr_id``, or None if there is none."""
        count = self._words[_RQ_PROD] - self._received & _MASK
        if not count:
            return None
        if count > self.receive_slots:
            raise RingError(f"{count} receives in a ring of {self.receive_slots}")
        slot = self._received & self.receive_slots - 1
        (wr_id,) = _RECEIVE.unpack_from(self.memory.map, self._receive_at + slot * _RECEIVE.size)
        self._received = self._words[_RQ_CONS] = self._received + 1 & _MASK
        return int(wr_id)


class CompletionRing:
    """The ring of a completion queue."""

    def __init__(self, number: int, slots: int, channel: int | None) -> None:
        self.number = number
        self.channel = channel
        """The descriptor to which events are written, or None."""
        self.slots = power_of_two(slots)
        self.memory = SharedMemory(WORDS["CQ_RING_OFFSET"] + self.slots * _COMPLETION.size)
        self._words = self.memory.words
        self._prod = 0
        self.pushed = False
        """True if a completion was added since the last ``event_due``."""
        self.overrun_told = False
        """True if the overrun of the queue was reported."""
        self.users = 0
        """Number of queue pairs that use this completion queue."""
        self._solicited = False

    def push(
        self,
        wr_id: int,
        qp_num: int,
        status: int,
        opcode: int,
        byte_len: int,
        imm: int,
        flags: int,
        retired: int,
        cookie: int,
        *,
        solicited: bool = False,
    ) -> bool:
        """Add a completion. Return False if there is no room: then the queue is overrun."""
        words = self._words
        if self._prod - words[_CQ_CONS] & _MASK >= self.slots:
            words[_CQ_OVERRUN] = 1
            return False
        at = WORDS["CQ_RING_OFFSET"] + (self._prod & self.slots - 1) * _COMPLETION.size
        _COMPLETION.pack_into(
            self.memory.map, at, wr_id, qp_num, status, opcode, byte_len, imm, flags, retired, cookie
        )
        self._prod = words[_CQ_PROD] = self._prod + 1 & _MASK
        self.pushed = True
        self._solicited = self._solicited or solicited or status != 0
        return True

    def event_due(self) -> bool:
        """Return True if the program requested an event and the event is due. Call `fence` first."""
        armed = self._words[_CQ_ARMED]
        due = armed == 1 or (armed == 2 and self._solicited)
        if due:
            self._words[_CQ_ARMED] = 0
        self._solicited = self.pushed = False
        return due


SMALL_BYTES = 256
TAIL_BYTES = 8
LOCAL_WRITE, REMOTE_WRITE = 1, 2


class MemoryFaultError(OSError):
    """The program has no memory at this address, or no right to use it."""


class ProgramMemory:
    """Reads and writes of one program's memory."""

    def __init__(self, mem_fd: int, maps_fd: int, pid: int) -> None:
        """Use the descriptors. Raise PermissionError if they do not belong to process ``pid``.

        The check compares files and not paths. In a program with another root directory (chroot), the paths
        would differ.
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
        """Read the program's memory. Raise MemoryFaultError if the program has no memory there."""
        try:
            data = os.pread(self._mem, length, address)
        except (OSError, OverflowError) as error:
            raise MemoryFaultError(errno.EFAULT, str(error)) from None
        if len(data) != length:
            raise MemoryFaultError(errno.EFAULT, f"no memory at {address + len(data):#x}")
        return data

    def write(self, address: int, data: bytes | memoryview) -> None:
        """Write into the program's memory. Raise MemoryFaultError if the program has no memory there.

        A small write writes its last bytes last, because a program may poll these bytes.
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
        """Return whether the program may read, or also write, all of these bytes.

        Call this when memory is registered, because the kernel lets the service write even to memory that is
        read-only for the program.
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
    """The memory of a region, into which the endpoint writes (`mrclab.hosts.rdma.memory.Place`)."""

    def __init__(self, memory: ProgramMemory, address: int) -> None:
        self._memory = memory
        self._address = address

    def __setitem__(self, where: slice, data: bytes | memoryview, /) -> None:
        self._memory.write(self._address + where.start, data)
