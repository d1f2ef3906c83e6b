"""Flow control of lossless links: priority flow control (pause frames), and credits.

Priority flow control: a receiver whose buffer fills sends a pause frame, and a resume once it has drained.
[QBB] is IEEE 802.1Qbb (in IEEE 802.1Q since 2014), whose annex on buffer requirements says how much arrives
after a pause is sent; [DCQCN] is Zhu et al., Congestion Control for Large-Scale RDMA Deployments, SIGCOMM
2015. A pause here lasts until its resume. Real ones run out after 65,535 quanta of 512 bit times (335 us at
100 Gbit/s) and are renewed before; the frames that renew them are left out.

Credits: a sender sends only as much as the receiver has announced room for, as InfiniBand's links do, per
virtual lane (here: class), in blocks of 64 bytes. [IBTA] is the InfiniBand Architecture Specification, volume
1, section 7.9. There, a flow control packet carries FCTBS, the blocks that its sender has sent in all, and
FCCL, the number up to which the other end may send. Both count modulo 4096 there, so a lane's buffer is at
most 2048 blocks; here they do not wrap.
"""

from __future__ import annotations

from typing import Final

from mrclab.simulator.port import DATA, Node, Packet
from mrclab.simulator.served import CLASSES, Inlet, ServedPort

PAUSE_BYTES: Final = 64
RESPONSE_NS: Final = 500
"""From the arrival of a pause until no new frame begins: an assumption. IEEE 802.3, annex 31B, allows 394
quanta at 100 Gbit/s, 2 us."""
XON_FRAMES: Final = 2
"""A resume is sent when the buffer is so many frames below the threshold of the pause [DCQCN, section 4]."""
_PAUSE, _RESUME = 1, 0


def headroom_bytes(rate_bps: int, delay_ps: int, frame_bytes: int, response_ps: int) -> int:
    """Return the bytes that may still arrive after the threshold was passed.

    [QBB]: the pause waits for a frame of full size that the receiver is sending, takes its own time on the
    wire and the link's delay, and the sender's time to respond; the sender may just have begun another full
    frame; and all bytes on the wire arrive. To this comes one frame, since a threshold is passed by whole
    frames.
    """
    flying_bytes = -(-(2 * delay_ps + response_ps) * rate_bps // (8 * 10**12))
    return flying_bytes + PAUSE_BYTES + 3 * frame_bytes


class PfcPort(ServedPort):
    """The sending end of a link with PFC: it stops a class when it is paused."""

    def on_signal(self, priority: int, value: int) -> None:
        """Obey a pause or a resume."""
        if value == _PAUSE:
            self.stop(priority)
        else:
            self.go_on(priority)
            self.serve()


class PfcInlet(Inlet):
    """The receiving end: it sends a pause for a class that holds more than XOFF, a resume at XON."""

    def __init__(
        self, port: PfcPort, node: Node, reverse: PfcPort, xoff_bytes: int, xon_bytes: int, headroom: int
    ) -> None:
        """Stand at the end of the link of `port`; pauses go back over `reverse`."""
        super().__init__(port, node, xoff_bytes + headroom)
        self._reverse = reverse
        self.xoff_bytes = xoff_bytes
        self.xon_bytes = xon_bytes
        self.pausing = [False] * CLASSES
        self.pauses = 0
        self.resumes = 0
        self._refusing = False

    def taken(self, priority: int) -> None:
        """Send a pause above XOFF."""
        if self.held_bytes[priority] > self.xoff_bytes and not self.pausing[priority]:
            self._pause(priority)

    def left(self, priority: int, size_bytes: int) -> None:
        """Send a resume at XON."""
        if self._refusing and priority == DATA:
            return
        if self.pausing[priority] and self.held_bytes[priority] <= self.xon_bytes:
            self._resume(priority)

    def refuse(self, refusing: bool) -> None:
        """Pause data without end, as a NIC does that no longer takes anything in; or end that."""
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
"""A flow control packet: 6 bytes and its delimiters [IBTA 7.9.4]."""


def blocks_of(size_bytes: int) -> int:
    """Return how many blocks a packet takes: a part of a block is a whole one."""
    return -(-size_bytes // BLOCK_BYTES)


class CreditPort(ServedPort):
    """The sending end of a link with credits."""

    def grant(self, blocks: int) -> None:
        """Begin with room for so many blocks of each class."""
        self._sent_blocks = [0] * CLASSES
        self._limit_blocks = [blocks] * CLASSES

    def claim(self, priority: int, size_bytes: int) -> bool:
        """Take a packet's credits if there are enough, else stop its class until there are."""
        sent = self._sent_blocks[priority] + blocks_of(size_bytes)
        if sent > self._limit_blocks[priority]:
            self.stop(priority)
            return False
        self._sent_blocks[priority] = sent
        self.go_on(priority)
        return True

    def on_signal(self, priority: int, value: int) -> None:
        """Take in a new limit."""
        self._limit_blocks[priority] = value
        self.serve()

    def supersedes(self, old: int, new: int) -> bool:
        """Return True: a limit that still waits to be sent may be the newer one."""
        return True


class CreditInlet(Inlet):
    """The receiving end: it says how far the sender may go whenever a packet leaves the buffer."""

    def __init__(self, port: CreditPort, node: Node, reverse: CreditPort, capacity_bytes: int) -> None:
        """Stand at the end of the link of `port`; credits go back over `reverse`."""
        blocks = capacity_bytes // BLOCK_BYTES
        super().__init__(port, node, blocks * BLOCK_BYTES)
        self._reverse = reverse
        self._limit_blocks = [blocks] * CLASSES
        self._withheld_blocks = 0
        self._refusing = False
        port.grant(blocks)

    def left(self, priority: int, size_bytes: int) -> None:
        """Give a packet's credits back."""
        self._give(priority, blocks_of(size_bytes))

    def lost(self, packet: Packet) -> None:
        """Give the credits of a lost packet back at once; the next FCTBS would show that it is missing."""
        self._give(packet.priority, blocks_of(packet.size_bytes))

    def refuse(self, refusing: bool) -> None:
        """Give no credits for data any more, or all withheld ones."""
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
