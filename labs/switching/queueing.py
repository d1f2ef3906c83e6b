"""Send a burst through a student's switch with one queue, and record the result of each frame (lab 3)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mrclab.labs.p4 import program_of, read_compiled
from mrclab.switches.p4_model import Interpreter
from mrclab.switches.v1model.program import Program

FRAME_BYTES = 1000
TRIM_LEN, TRIMMABLE, TRIMMED = 134, 4, 12
NOT_ECT, ECT, CE = 0, 2, 3
BYTE_TICKS, TICKS_PER_US = 82, 1024
WAIT_US = FRAME_BYTES * BYTE_TICKS / TICKS_PER_US
"""The time by which each frame of a burst lengthens the wait of the next frame, in us."""
_HEADERS = 54
HALF = 0x8000


@dataclass(frozen=True)
class Fate:
    """The result of a frame. ``data`` is the frame that the switch sent, or empty if it was dropped."""

    data: bytes

    @property
    def dropped(self) -> bool:
        """True if the switch dropped the frame."""
        return not self.data

    @property
    def dscp(self) -> int:
        """The DSCP of the frame."""
        return (self.data[14] & 0xF) << 2 | self.data[15] >> 6

    @property
    def marked(self) -> bool:
        """True if the frame has an ECN mark."""
        return not self.dropped and self.data[15] >> 4 & 3 == CE

    @property
    def trimmed(self) -> bool:
        """True if the switch sent the frame shorter than it had received it."""
        return not self.dropped and len(self.data) < FRAME_BYTES

    @property
    def payload_len(self) -> int:
        """The payload length in the IPv6 header."""
        return int.from_bytes(self.data[18:20], "big")


class Queue:
    """A switch with one queue. Its clock changes only if the caller sets ``now_us``."""

    def __init__(self, program: Program, draw: Callable[[], int] = lambda: HALF) -> None:
        self.now_us = 1_000_000
        self._model = Interpreter(program, {}, random=lambda low, high: draw(), clock=lambda: self.now_us)

    def send(self, dscp: int = TRIMMABLE, ecn: int = ECT, size: int = FRAME_BYTES) -> Fate:
        """Send a frame through the switch and return the result."""
        head = struct.pack("!IHBB", 6 << 28 | dscp << 22 | ecn << 20, size - _HEADERS, 59, 64)
        sent = b"\x02" * 6 + b"\x04" * 6 + b"\x86\xdd" + head + bytes(32) + bytes(size - _HEADERS)
        out = self._model.run(1, sent)
        return Fate(out[0][1] if out else b"")

    def wait_us(self) -> float:
        """Return how long the next frame would wait, in us."""
        [idle] = [
            value for (name, _), value in self._model.registers.items() if name.endswith("idle_at")
        ] or [0]
        return max(0.0, idle / TICKS_PER_US - self.now_us)


def show(program: Path) -> str:
    """Send two bursts through a program. Return a text that draws each frame's wait and names its result.

    ``program`` is a student's folder or a compiled file.
    """
    loaded = program_of(program) if program.is_dir() else read_compiled(program)
    lines = []
    for title, dscp, ecn, count in (
        ("trimmable frames, whose sender knows marks", TRIMMABLE, ECT, 20),
        ("frames that may not be trimmed, whose sender does not know marks", 0, NOT_ECT, 30),
    ):
        queue = Queue(loaded)
        lines.append(f"A burst of {title}:")
        for number in range(count):
            wait = queue.wait_us()
            fate = queue.send(dscp, ecn)
            lines.append(
                f"  {number:2}  waits {wait:6.0f} us  {'#' * round(wait / 50):44} {_word(fate)}".rstrip()
            )
    return "\n".join(lines)


def _word(fate: Fate) -> str:
    if fate.dropped:
        return "dropped"
    words = ["marked"] if fate.marked else []
    if fate.trimmed:
        words.append(f"trimmed to {len(fate.data)}, DSCP {fate.dscp}, payload length {fate.payload_len}")
    return ", ".join(words)
