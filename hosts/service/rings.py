"""The rings in shared memory: requests that a program posts, and completions that the service returns.

The service makes each memory object and seals its size: a program cannot truncate it under the service. A
request is copied before it is checked, and its counters are bounded. Counters run modulo 2^32.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from typing import Any

from mrclab.hosts.service.layout import WORDS, record

_MASK = 0xFFFFFFFF
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_WORK, _RECEIVE, _COMPLETION = record("work"), record("receive"), record("completion")
_SQ_PROD, _SQ_CONS = WORDS["QP_SQ_PROD"], WORDS["QP_SQ_CONS"]
_RQ_PROD, _RQ_CONS = WORDS["QP_RQ_PROD"], WORDS["QP_RQ_CONS"]
_CQ_PROD, _CQ_CONS, _CQ_ARMED = WORDS["CQ_PROD"], WORDS["CQ_CONS"], WORDS["CQ_ARMED"]
_CQ_OVERRUN = WORDS["CQ_OVERRUN"]
_BARRIER = threading.Lock()


class RingError(ValueError):
    """A program's counters make no sense."""


def fence() -> None:
    """Order all earlier stores before all later loads, by a lock's atomic operations."""
    _BARRIER.acquire()
    _BARRIER.release()


def power_of_two(count: int) -> int:
    """Return the smallest power of two that is not below a positive number."""
    return 1 << max(0, count - 1).bit_length()


class SharedMemory:
    """A sealed memory object, mapped here and passed to the program by descriptor."""

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
        """Return the descriptor, which is the caller's from now on; the mapping stays."""
        fd, self.fd = self.fd, -1
        return fd

    def close(self) -> None:
        """Unmap it here; the program's mapping stays."""
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
        """Return how many send requests wait. Raise RingError if the program claims more than fit."""
        count = self._words[_SQ_PROD] - self._sent & _MASK
        if count > self.send_slots:
            raise RingError(f"{count} requests in a ring of {self.send_slots}")
        return count

    def take(self) -> tuple[Any, ...]:
        """Take the oldest send request, as a copy; one must wait."""
        slot = self._sent & self.send_slots - 1
        work = _WORK.unpack_from(self.memory.map, self._send_at + slot * _WORK.size)
        self._sent = self._words[_SQ_CONS] = self._sent + 1 & _MASK
        return work

    def take_receive(self) -> int | None:
        """Take the oldest posted receive and return its ``wr_id``; None if there is none."""
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
        """The descriptor that events are written to, or None."""
        self.slots = power_of_two(slots)
        self.memory = SharedMemory(WORDS["CQ_RING_OFFSET"] + self.slots * _COMPLETION.size)
        self._words = self.memory.words
        self._prod = 0
        self.pushed = False
        """Something was added since the last ``event_due``."""
        self.overrun_told = False
        """The overrun of the queue was reported."""
        self.users = 0
        """Queue pairs that complete here."""
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
        """Add a completion. Return False if there is no room: the queue is overrun."""
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
        """Return whether the program asked for an event and one is due; call after a fence."""
        armed = self._words[_CQ_ARMED]
        due = armed == 1 or (armed == 2 and self._solicited)
        if due:
            self._words[_CQ_ARMED] = 0
        self._solicited = self.pushed = False
        return due
