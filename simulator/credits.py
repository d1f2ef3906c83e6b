"""Credit-based flow control: a sender sends only as much as the receiver has announced room for.

As InfiniBand's links do, per virtual lane (here: class), in blocks of 64 bytes. [IBTA] is the InfiniBand
Architecture Specification, volume 1, section 7.9. There, a flow control packet carries FCTBS, the blocks that
its sender has sent in all, and FCCL, the number up to which the other end may send. Both count modulo 4096
there, so a lane's buffer is at most 2048 blocks; here they do not wrap.
"""

from __future__ import annotations

from typing import Final

from mrclab.simulator.port import DATA, Node, Packet
from mrclab.simulator.served import CLASSES, Inlet, ServedPort

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
