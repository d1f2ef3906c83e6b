"""Flow control of lossless links: priority flow control (pause frames), and credits.

Priority flow control: a receiver sends a pause frame when its buffer fills, and a resume when the buffer has
drained. [QBB] is IEEE 802.1Qbb (in IEEE 802.1Q since 2014); its annex on buffer requirements gives the bytes
that arrive after a pause. [DCQCN] is Zhu et al., Congestion Control for Large-Scale RDMA Deployments, SIGCOMM
2015. In this module a pause lasts until its resume. A real pause ends after 65,535 quanta of 512 bit times
(335 us at 100 Gbit/s) if no other frame renews it. Frames that renew a pause are not simulated.

Credits: a sender sends only if the receiver has announced room. InfiniBand's links do this for each virtual
lane (here: class), in blocks of 64 bytes. [IBTA] is the InfiniBand Architecture Specification, volume 1,
section 7.9. A flow control packet of InfiniBand carries two numbers of blocks. FCTBS is the number sent so
far. FCCL is the number up to which the other end may send. Both numbers count modulo 4096, so a lane's buffer
has at most 2048 blocks. In this module the numbers do not wrap.
"""

from __future__ import annotations

from typing import Final

from mrclab.simulator.port import DATA, Node, Packet
from mrclab.simulator.served import CLASSES, Inlet, ServedPort

PAUSE_BYTES: Final = 64
RESPONSE_NS: Final = 500
"""Time from the arrival of a pause until the sender begins no new frame. This is an assumption.

IEEE 802.3, annex 31B, allows 394 quanta at 100 Gbit/s, 2 us.
"""
XON_FRAMES: Final = 2
"""A resume is sent when the buffer is this many frames below the threshold of the pause [DCQCN, section 4].
"""
_PAUSE, _RESUME = 1, 0


def headroom_bytes(rate_bps: int, delay_ps: int, frame_bytes: int, response_ps: int) -> int:
    """Return the number of bytes that may still arrive after the threshold is passed.

    [QBB]: The pause first waits for a full frame that the receiver is sending. Then the pause's transmission,
    the link's delay and the sender's response take time. The sender may just have begun another full frame,
    and all bytes on the wire arrive. One more frame is added, because a threshold is checked only after a
    whole frame.
    """
    flying_bytes = -(-(2 * delay_ps + response_ps) * rate_bps // (8 * 10**12))
    return flying_bytes + PAUSE_BYTES + 3 * frame_bytes


class PfcPort(ServedPort):
    """The sending end of a link with PFC. It stops a class when it receives a pause."""

    def on_signal(self, priority: int, value: int) -> None:
        """Obey a pause or a resume."""
        if value == _PAUSE:
            self.stop(priority)
        else:
            self.go_on(priority)
            self.serve()


class PfcInlet(Inlet):
    """The receiving end of a link with PFC. It sends a pause above XOFF, and a resume at XON."""

    def __init__(
        self, port: PfcPort, node: Node, reverse: PfcPort, xoff_bytes: int, xon_bytes: int, headroom: int
    ) -> None:
        """Create the receiving end of the link that begins at `port`. Pauses are sent back over `reverse`."""
        super().__init__(port, node, xoff_bytes + headroom)
        self._reverse = reverse
        self.xoff_bytes = xoff_bytes
        self.xon_bytes = xon_bytes
        self.pausing = [False] * CLASSES
        self.pauses = 0
        self.resumes = 0
        self._refusing = False

    def taken(self, priority: int) -> None:
        """Send a pause if the class holds more than XOFF."""
        if self.held_bytes[priority] > self.xoff_bytes and not self.pausing[priority]:
            self._pause(priority)

    def left(self, priority: int, size_bytes: int) -> None:
        """Send a resume if the buffer has at most XON bytes of the class."""
        if self._refusing and priority == DATA:
            return
        if self.pausing[priority] and self.held_bytes[priority] <= self.xon_bytes:
            self._resume(priority)

    def refuse(self, refusing: bool) -> None:
        """Pause data without end, like a faulty NIC that accepts no frames, or end this pause."""
        self._refusing = refusing
        if refusing and not self.pausing[DATA]:
            self._pause(DATA)
        elif not refusing and self.pausing[DATA] and self.held_bytes[DATA] <= self.xon_bytes:
            self._resume(DATA)

    def _pause(self, priority: int) -> None:
        port = self.port
        self.pausing[priority] = True
        self.pauses += 1
        self._reverse.signal(port, priority, _PAUSE)

    def _resume(self, priority: int) -> None:
        self.pausing[priority] = False
        self.resumes += 1
        self._reverse.signal(self.port, priority, _RESUME)


BLOCK_BYTES: Final = 64
UPDATE_BYTES: Final = 8
"""Size of a flow control packet: 6 bytes and its delimiters [IBTA 7.9.4]."""


def blocks_of(size_bytes: int) -> int:
    """Return the number of blocks of a packet. A part of a block counts as a block."""
    return -(-size_bytes // BLOCK_BYTES)


class CreditPort(ServedPort):
    """The sending end of a link with credits."""

    def grant(self, blocks: int) -> None:
        """Set the first limit: each class may send this number of blocks."""
        self._sent_blocks = [0] * CLASSES
        self._limit_blocks = [blocks] * CLASSES

    def claim(self, priority: int, size_bytes: int) -> bool:
        """Use a packet's credits if there are enough. Otherwise stop its class."""
        sent = self._sent_blocks[priority] + blocks_of(size_bytes)
        if sent > self._limit_blocks[priority]:
            self.stop(priority)
            return False
        self._sent_blocks[priority] = sent
        self.go_on(priority)
        return True

    def on_signal(self, priority: int, value: int) -> None:
        """Store the new limit of credits, and continue to send frames."""
        self._limit_blocks[priority] = value
        self.serve()

    def supersedes(self, old: int, new: int) -> bool:
        """Return True: a new limit may replace a limit that still waits to be sent."""
        return True


class CreditInlet(Inlet):
    """The receiving end of a link with credits. A packet that leaves the buffer frees its credits."""

    def __init__(self, port: CreditPort, node: Node, reverse: CreditPort, capacity_bytes: int) -> None:
        """Create the receiving end of the link that begins at `port`. Credits go back over `reverse`."""
        blocks = capacity_bytes // BLOCK_BYTES
        super().__init__(port, node, blocks * BLOCK_BYTES)
        self._reverse = reverse
        self._limit_blocks = [blocks] * CLASSES
        self._withheld_blocks = 0
        self._refusing = False
        port.grant(blocks)

    def left(self, priority: int, size_bytes: int) -> None:
        """Return a packet's credits to the sender."""
        self._give(priority, blocks_of(size_bytes))

    def lost(self, packet: Packet) -> None:
        """Return the credits of a lost packet at once. In InfiniBand, the next FCTBS would show the loss."""
        self._give(packet.priority, blocks_of(packet.size_bytes))

    def refuse(self, refusing: bool) -> None:
        """Withhold the credits of data packets, or return all withheld credits."""
        self._refusing = refusing
        if not refusing and self._withheld_blocks:
            blocks, self._withheld_blocks = self._withheld_blocks, 0
            self._give(DATA, blocks)

    def _give(self, priority: int, blocks: int) -> None:
        if self._refusing and priority == DATA:
            self._withheld_blocks += blocks
            return
        self._limit_blocks[priority] += blocks
        self._reverse.signal(self.port, priority, self._limit_blocks[priority])
