"""Lab 9: models of a NIC and its peer, against which a student's C program runs (`stub_nic.c`).

`SendingNic` and `ReceivingNic` do no I/O. They complete requests in random order and raise `Wrong` (a hint)
for a mistake. `run` connects a model to the program, which runs in a process without rights.
"""

from __future__ import annotations

import errno
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from mrclab.labs.sandbox.program import Program

STUB = Path(__file__).parent / "stub_nic.c"
RKEY, LKEY, REMOTE = 0x1234, 0x77, 0x7F00_0010_0000
FIRST_QP_NUMBER = 0x141
LIMIT_S = 110.0
IDLE_POLLS = 2000
SUCCESS, FLUSHED, RETRIES = 0, 5, 12
WRITE_WITH_IMM, SIGNALED = 1, 2
WRITTEN, IMMEDIATE = 1, 129
"""Opcodes of completions: IBV_WC_RDMA_WRITE and IBV_WC_RECV_RDMA_WITH_IMM."""

Watch = Callable[[str], None]


class Wrong(Exception):  # noqa: N818
    """The program made a mistake. The text is the hint for the student."""


@dataclass(frozen=True)
class Setting:
    """A transfer. ``fail`` maps a queue pair to the number of completions after which it fails."""

    receiving: bool = False
    qps: int = 1
    depth: int = 4
    length: int = 20_000
    message_bytes: int = 1024
    fail: dict[int, int] = field(default_factory=dict)
    seed: int = 1

    @property
    def messages(self) -> int:
        """The number of messages of the transfer."""
        return -(-self.length // self.message_bytes)


@dataclass(frozen=True)
class Write:
    """A write that the program has posted."""

    qp: int
    wr_id: int
    number: int
    start: int
    data: bytes


@dataclass(frozen=True)
class Completion:
    """A completion that the program gets. ``imm`` is -1 if there is no immediate."""

    wr_id: int
    status: int
    qp: int
    opcode: int = WRITTEN
    imm: int = -1
    byte_len: int = 0

    def words(self) -> str:
        """Return the completion in the text format that the stub reads."""
        found = (self.wr_id, self.status, FIRST_QP_NUMBER + self.qp, self.opcode, self.imm, self.byte_len)
        return " ".join(map(str, found))


class Nic(Protocol):
    """A model of a NIC, which handles the requests of the program."""

    def post_send(self, words: Sequence[int], data: bytes) -> int:
        """Post a write. Return 0 or an errno."""

    def post_recv(self, qp: int, wr_id: int) -> int:
        """Post a receive. Return 0 or an errno."""

    def started(self) -> None:
        """Check the receives that are posted before the transfer starts."""

    def poll(self, count: int) -> list[Completion]:
        """Return at most ``count`` completions."""

    def ended(self, code: int) -> None:
        """Check the transfer after the program has returned ``code``."""


def memory_of(setting: Setting) -> bytes:
    """Return the data that the sender writes to the receiver."""
    return bytes((at * 31 + (at >> 8) * 7) & 0xFF for at in range(setting.length))


class SendingNic:
    """The NIC of a program that sends writes into a receiver's memory."""

    def __init__(self, setting: Setting, watch: Watch = lambda line: None) -> None:
        self._setting = setting
        self._watch = watch
        self._rng = random.Random(setting.seed)
        self._memory = bytearray(setting.length)
        self._under_way: list[deque[Write]] = [deque() for _ in range(setting.qps)]
        self._completed = [0] * setting.qps
        self._failed: set[int] = set()
        self._seen_failed: set[int] = set()
        self._late_posts = 0
        self._done: set[int] = set()
        self._most = 0
        self._idle = 0
        self._used: set[int] = set()

    def post_send(self, words: Sequence[int], data: bytes) -> int:
        """Check a write request and accept it, or raise Wrong."""
        qp, wr_id, opcode, flags, imm, remote, rkey, pieces, lkey, length, ours = words
        setting = self._setting
        if opcode != WRITE_WITH_IMM:
            raise Wrong(
                "The opcode should be IBV_WR_RDMA_WRITE_WITH_IMM: the receiver only hears of writes with "
                "an immediate."
            )
        if not flags & SIGNALED:
            raise Wrong(
                "A request without IBV_SEND_SIGNALED never completes by itself: set it in send_flags."
            )
        if pieces != 1 or not ours:
            raise Wrong(
                "A request should have one piece, inside of t->memory: message n begins at n * "
                "message_bytes, and the last one is shorter."
            )
        if (rkey, lkey) != (RKEY, LKEY):
            raise Wrong(
                "Every request has two keys: lkey is of our memory (in the piece), rkey of the peer's "
                "(wr.rdma.rkey)."
            )
        start = remote - REMOTE
        if not 0 <= start <= setting.length - length:
            raise Wrong(
                "The NIC of the peer refuses this write: it is not within its memory. remote_addr is "
                "remote_address and the place of the message."
            )
        if imm >= setting.messages:
            raise Wrong(
                f"The immediate of a message is {imm}, and there are {setting.messages} messages. imm_data "
                "is in network byte "
                "order: htonl(number), counted from 0. And is the last, shorter message counted, once?"
            )
        if len(self._under_way[qp]) == setting.depth:
            raise Wrong(
                f"More than {setting.depth} requests of a queue pair are under way: count them, up with "
                "each post and down with each completion."
            )
        if qp in self._seen_failed:
            self._late_posts += 1
            if self._late_posts > setting.depth:
                raise Wrong(
                    "A queue pair that has failed once fails for ever: after a completion with an error "
                    "post to the others only."
                )
        self._used.add(qp)
        self._under_way[qp].append(Write(qp, wr_id, imm, start, data))
        self._most = max(self._most, len(self._under_way[qp]))
        self._watch(f"post      qp {qp}  message {imm:2}  {length} bytes")
        return 0

    def post_recv(self, qp: int, wr_id: int) -> int:
        """Refuse the request: a sender posts no receives."""
        return errno.EINVAL

    def started(self) -> None:
        """Do nothing: a sender posts no receives."""

    def poll(self, count: int) -> list[Completion]:
        """Complete some writes of random queue pairs, in order within each queue pair.

        Raise Wrong if the program polls too often while no write is under way.
        """
        busy = [qp for qp, writes in enumerate(self._under_way) if writes]
        if not busy:
            self._idle += 1
            if self._idle > IDLE_POLLS:
                missing = self._setting.messages - len(self._done)
                raise Wrong(
                    f"send_all polls, and no request is under way; {missing} messages have not completed. "
                    "Are messages of a "
                    "failed queue pair posted again, and the last ones at all? Or is a completion not "
                    "counted: mrc_poll_cq returns several at once."
                )
        found: list[Completion] = []
        for _ in range(self._rng.randint(0, max(0, count))):
            busy = [qp for qp, writes in enumerate(self._under_way) if writes]
            if busy:
                found.append(self._complete(self._rng.choice(busy)))
        return found

    def _complete(self, qp: int) -> Completion:
        write = self._under_way[qp].popleft()
        limit = self._setting.fail.get(qp)
        if limit is not None and self._completed[qp] >= limit:
            status = FLUSHED if qp in self._failed else RETRIES
            self._failed.add(qp)
            self._seen_failed.add(qp)
            if self._rng.random() < 0.5:
                self._place(write)  # the write arrived; only its acknowledgement was lost
            self._watch(
                f"complete  qp {qp}  message {write.number:2}  "
                f"{'flushed' if status == FLUSHED else 'retries exceeded'}"
            )
            return Completion(write.wr_id, status, qp, opcode=255)
        self._place(write)
        self._completed[qp] += 1
        self._done.add(write.number)
        self._watch(f"complete  qp {qp}  message {write.number:2}  ok")
        return Completion(write.wr_id, SUCCESS, qp)

    def _place(self, write: Write) -> None:
        self._memory[write.start : write.start + len(write.data)] = write.data

    def ended(self, code: int) -> None:
        """Raise Wrong if the receiver's memory, the return code or the use of queue pairs is wrong."""
        setting = self._setting
        if len(setting.fail) == setting.qps:
            if code == 0:
                raise Wrong(
                    "All queue pairs have failed before the end, and send_all returned 0: the caller has "
                    "to know."
                )
            return
        if code != 0:
            raise Wrong(
                f"send_all returned {code}, with {len(self._done)} of {setting.messages} messages written. "
                "A queue pair was left."
            )
        missing = sorted(set(range(setting.messages)) - self._done)
        if missing:
            raise Wrong(
                f"send_all returned 0, and {len(missing)} messages have no good completion, the first of "
                f"them {missing[0]}. A post is no "
                "completion, and a completion counts only if its status is IBV_WC_SUCCESS."
            )
        if self._memory != memory_of(setting):
            at = next(
                n for n, (a, b) in enumerate(zip(self._memory, memory_of(setting), strict=True)) if a != b
            )
            raise Wrong(
                f"Byte {at} of {setting.length} is wrong in the receiver's memory: does each message go to "
                "its own place?"
            )
        if self._most < min(2, setting.depth, setting.messages):
            raise Wrong(
                "Never more than one request is under way. A NIC waits for the network most of that time: "
                "keep up to t->depth under way."
            )
        if setting.qps > 1 and len(self._used) == 1:
            raise Wrong(
                "All messages take one queue pair, and the others rest: when it fails, nothing else is "
                "under way."
            )


class ReceivingNic:
    """The NIC of a program that receives writes. Immediates come in random order, some of them twice."""

    def __init__(self, setting: Setting, watch: Watch = lambda line: None) -> None:
        self._setting = setting
        self._watch = watch
        self._rng = random.Random(setting.seed)
        self._receives: list[deque[int]] = [deque() for _ in range(setting.qps)]
        self._coming: list[deque[int]] = [deque() for _ in range(setting.qps)]
        self._flushed: deque[Completion] = deque()
        self._failed: set[int] = set()
        self._delivered = [0] * setting.qps
        self._come: set[int] = set()
        self._idle = 0
        numbers = list(range(setting.messages))
        self._rng.shuffle(numbers)
        again = self._rng.sample(numbers, len(numbers) // 5)
        for number in [*numbers[: len(numbers) // 2], *again, *numbers[len(numbers) // 2 :]]:
            self._coming[self._rng.randrange(setting.qps)].append(number)

    def post_send(self, words: Sequence[int], data: bytes) -> int:
        """Raise Wrong: a receiver posts no writes in this lab."""
        raise Wrong("A receiver posts no writes in this lab.")

    def post_recv(self, qp: int, wr_id: int) -> int:
        """Accept a receive. Raise Wrong if too many are posted."""
        if len(self._receives[qp]) == self._setting.depth:
            raise Wrong(
                f"More than {self._setting.depth} receives of a queue pair are posted: post one again for "
                "each that has completed."
            )
        if qp in self._failed:
            self._flushed.append(Completion(wr_id, FLUSHED, qp, opcode=255))
        else:
            self._receives[qp].append(wr_id)
        return 0

    def started(self) -> None:
        """Raise Wrong if too few receives are posted before the transfer starts."""
        if not all(len(each) == self._setting.depth for each in self._receives):
            raise Wrong(
                "receive_start should post t->depth receives to each queue pair: the sender may start "
                "right after it."
            )

    def poll(self, count: int) -> list[Completion]:
        """Deliver some immediates, each into a posted receive. Raise Wrong if the program polls for ever."""
        found: list[Completion] = []
        for _ in range(self._rng.randint(0, max(0, count))):
            self._fail()
            ready = [qp for qp, coming in enumerate(self._coming) if coming and self._receives[qp]]
            if self._flushed and (not ready or self._rng.random() < 0.3):
                found.append(self._flushed.popleft())
            elif ready:
                found.append(self._deliver(self._rng.choice(ready)))
        self._idle = 0 if found or count < 1 else self._idle + 1
        if self._idle > IDLE_POLLS:
            self._stuck()
        return found

    def _stuck(self) -> None:
        if any(self._coming):
            raise Wrong(
                "An immediate needs a posted receive. All of a queue pair's are used up after "
                f"{len(self._come)} messages: post one again for each that "
                "completes, also for a message that has come before."
            )
        raise Wrong(
            "All messages have come, and receive_all still polls. Which numbers have come? imm_data is in "
            "network byte order: "
            "ntohl. The last message may be a shorter one."
        )

    def _deliver(self, qp: int) -> Completion:
        number, wr_id = self._coming[qp].popleft(), self._receives[qp].popleft()
        self._delivered[qp] += 1
        note = "  (again)" if number in self._come else ""
        self._come.add(number)
        self._watch(f"arrived   qp {qp}  message {number:2}{note}")
        size = min(self._setting.message_bytes, self._setting.length - number * self._setting.message_bytes)
        return Completion(wr_id, SUCCESS, qp, IMMEDIATE, number, size)

    def _fail(self) -> None:
        """Fail each queue pair that has completed as many messages as ``fail`` in the setting allows.

        Flush the queue pair's receives, and move its messages to queue pairs that have not failed.
        """
        for qp, limit in self._setting.fail.items():
            if qp in self._failed or self._delivered[qp] < limit:
                continue
            self._failed.add(qp)
            self._watch(f"failed    qp {qp}")
            self._flushed.extend(Completion(wr_id, FLUSHED, qp, opcode=255) for wr_id in self._receives[qp])
            self._receives[qp].clear()
            left = [other for other in range(self._setting.qps) if other not in self._failed]
            for number in self._coming[qp] if left else ():
                self._coming[self._rng.choice(left)].append(number)
            self._coming[qp].clear()

    def ended(self, code: int) -> None:
        """Raise Wrong if the program's return code is not right.

        If all queue pairs fail in this setting, the code must not be 0. Otherwise the code must be 0, and all
        messages must have arrived.
        """
        missing = self._setting.messages - len(self._come)
        if len(self._setting.fail) == self._setting.qps:
            if code == 0:
                raise Wrong(
                    "All queue pairs have failed before the end, and receive_all returned 0: the caller "
                    "has to know."
                )
        elif code != 0:
            raise Wrong(
                f"The receiver returned {code}, and a queue pair was left: a failed one ends nothing but "
                "itself."
            )
        elif missing:
            raise Wrong(
                f"receive_all returned 0, and {missing} messages have not come. A message comes twice if "
                "its acknowledgement was "
                "lost: count different numbers, not completions."
            )


def sources_of(skeleton: Path, transfer: bytes) -> dict[str, bytes]:
    """Return the contents of the files to compile: the student's file, the skeleton's headers, the stub."""
    headers = {path.name: path.read_bytes() for path in skeleton.glob("*.h")}
    return {**headers, STUB.name: STUB.read_bytes(), "transfer.c": transfer}


def nic_of(setting: Setting, watch: Watch = lambda line: None) -> Nic:
    """Return a model of a NIC for a transfer."""
    return (ReceivingNic if setting.receiving else SendingNic)(setting, watch)


def run(program: Program, setting: Setting, nic: Nic) -> None:
    """Run a transfer. Raise Wrong for a mistake, ProgramEnd if the program ends too early."""
    numbers = [FIRST_QP_NUMBER + qp for qp in range(setting.qps)]
    first = [int(setting.receiving), setting.qps, setting.depth, setting.length, setting.message_bytes]
    program.write(" ".join(map(str, [*first, REMOTE, RKEY, LKEY, *numbers])) + "\n")
    while True:
        kind, *words = program.line().split()
        values = [int(word) for word in words]
        if kind == "S":
            data = program.read(values[9]) if values[10] else b""
            program.write(f"{nic.post_send(values, data)}\n")
        elif kind == "R":
            program.write(f"{nic.post_recv(*values)}\n")
        elif kind == "G":
            nic.started()
            program.write("0\n")
        elif kind == "P":
            found = nic.poll(values[0])
            program.write(" ".join([str(len(found)), *(each.words() for each in found)]) + "\n")
        else:
            nic.ended(values[0])
            program.write("0\n")
            program.end()
            return
