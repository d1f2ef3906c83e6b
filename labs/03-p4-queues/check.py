"""Checks of lab 3: marks, trimming and drops in front of one port, frame by frame."""

from __future__ import annotations

from mrclab.labs.checks import Checks, Student, require
from mrclab.labs.p4 import program_of
from mrclab.labs.switching.queueing import FRAME_BYTES, HALF, NOT_ECT, TRIM_LEN, TRIMMED, WAIT_US, Fate, Queue

CHECKS = Checks()
MARK_FROM, MARK_TO, TRIM_FROM, DROP_FROM = 200.0, 800.0, 1000.0, 2000.0


def burst(student: Student, count: int, draw: int = HALF, **of: int) -> list[tuple[float, Fate]]:
    """Send a burst and return, for each frame, how long it would wait (us) and its result."""
    queue = Queue(program_of(student.folder), lambda: draw)
    found = []
    for _ in range(count):
        wait = queue.wait_us()
        found.append((wait, queue.send(**of)))
    return found


@CHECKS.add("there is a program, and it queues", gate=True)
def program(student: Student) -> None:
    first = burst(student, 3)
    require(not first[0][1].dropped, "The first frame of a burst is dropped, though the queue is empty.")
    require(
        abs(first[2][0] - 2 * WAIT_US) < 1,
        f"Two frames of {FRAME_BYTES} bytes make {first[2][0]:.0f} us of wait, not {2 * WAIT_US:.0f}. Leave the given parts as they were.",
    )


@CHECKS.add("no marks up to 200 us, all frames marked from 800 us on")
def marks(student: Student) -> None:
    for draw in (0, 0xFFFF):
        for wait, fate in burst(student, 12, draw):
            require(
                wait > MARK_FROM or not fate.marked,
                f"A frame that waits {wait:.0f} us is marked. MARK_FROM is 200 us.",
            )
            require(
                wait < MARK_TO or fate.marked,
                f"A frame that waits {wait:.0f} us is not marked. From MARK_TO, 800 us, on all are.",
            )


@CHECKS.add("in between, marks are more likely the longer the wait")
def likely(student: Student) -> None:
    for draw in (0x2000, 0x4000, 0x8000, 0xC000, 0xE000):
        limit = MARK_FROM + draw / 0x10000 * (MARK_TO - MARK_FROM)
        for wait, fate in burst(student, 12, draw):
            if MARK_FROM < wait < MARK_TO and abs(wait - limit) > 5:
                require(
                    fate.marked == (wait > limit),
                    f"A frame that waits {wait:.0f} us is {'marked' if fate.marked else 'not marked'}, where {draw:#06x} was drawn of 0xffff. "
                    "Marking all from one depth on makes all senders slow down at once: between the two depths the probability grows with the wait, "
                    f"here {(wait - MARK_FROM) / (MARK_TO - MARK_FROM):.0%}. Compare the draw with it, without a division.",
                )


@CHECKS.add("frames whose sender does not know marks are never marked")
def unaware(student: Student) -> None:
    marked = [wait for wait, fate in burst(student, 20, 0, ecn=NOT_ECT) if fate.marked]
    require(
        not marked,
        "A frame with ECN 0 (Not-ECT) leaves with a mark. Its sender does not know about marks and would not slow down: what may a mark only replace?",
    )


@CHECKS.add("trimming: headers only, told by codepoint and length")
def trims(student: Student) -> None:
    for wait, fate in burst(student, 20):
        if wait <= TRIM_FROM:
            require(not fate.trimmed, f"A frame that waits {wait:.0f} us is trimmed. TRIM_FROM is 1000 us.")
            continue
        require(
            not fate.dropped,
            f"A trimmable frame that waits {wait:.0f} us is dropped. The receiver learns from a trimmed one which packet is missing.",
        )
        require(
            fate.trimmed and len(fate.data) == TRIM_LEN,
            f"A trimmable frame that waits {wait:.0f} us leaves with {len(fate.data)} bytes. TRIM_LEN are {TRIM_LEN}.",
        )
        require(
            fate.dscp == TRIMMED,
            f"A trimmed frame leaves with DSCP {fate.dscp}. How would the receiver know that it was cut?",
        )
        require(
            fate.payload_len == TRIM_LEN - 54,
            f"A trimmed frame says that its payload has {fate.payload_len} bytes, and {TRIM_LEN - 54} are there. Headers that say what is not there make it a broken packet: "
            "which header has a length?",
        )
    queue = Queue(program_of(student.folder))
    for _ in range(14):
        queue.send()
    found = len(queue.send(size=100).data)
    require(
        found == 100,
        f"A frame of 100 bytes, shorter than what a cut would leave, leaves with {found}. What is there to cut?",
    )
    other = Queue(program_of(student.folder))
    cut = [fate for fate in (other.send(dscp=0) for _ in range(20)) if fate.trimmed]
    require(not cut, "A frame with DSCP 0 is trimmed. Which frames may be?")


@CHECKS.add("a trimmed frame takes the room of what is left of it")
def room(student: Student) -> None:
    waits = [wait for wait, _ in burst(student, 30)]
    grown = waits[-1] - waits[-2]
    require(
        abs(grown - WAIT_US * TRIM_LEN / FRAME_BYTES) < 1,
        f"In a full queue each trimmed frame makes the next one wait {grown:.0f} us longer. A frame of {TRIM_LEN} bytes takes "
        f"{WAIT_US * TRIM_LEN / FRAME_BYTES:.0f} us of the link: which length goes into the queue, that before or behind the cut?",
    )


@CHECKS.add("drops: what cannot be trimmed, beyond 2000 us, and it takes no room")
def drops(student: Student) -> None:
    found = burst(student, 40, dscp=0)
    for wait, fate in found[:-1]:
        require(
            fate.dropped == (wait > DROP_FROM),
            f"A frame that may not be trimmed and waits {wait:.0f} us {'is dropped' if fate.dropped else 'is let in'}. DROP_FROM is 2000 us.",
        )
    require(
        found[-1][0] - found[-2][0] < 1,
        f"A frame that was dropped makes the next one wait {found[-1][0] - found[-2][0]:.0f} us longer. The link never sends it: how many bytes of it are in the queue?",
    )


@CHECKS.add("the queue drains")
def drains(student: Student) -> None:
    queue = Queue(program_of(student.folder))
    for _ in range(12):
        queue.send()
    queue.now_us += 2000
    fate = queue.send()
    require(
        not fate.marked and not fate.trimmed and not fate.dropped,
        "2 ms after a burst of 1 ms a frame is still treated as if the queue were full.",
    )


@CHECKS.add("the questions are answered")
def answers(student: Student) -> None:
    student.answered(4)
    waits = [wait for wait, _ in burst(student, 30)]
    student.told(1, "by how much the wait grows with each trimmed frame, in us", waits[-1] - waits[-2], 0.5)
