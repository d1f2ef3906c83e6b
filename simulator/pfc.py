"""Priority flow control: a receiver whose buffer fills sends a pause frame, and a resume once it has drained.

[QBB] is IEEE 802.1Qbb (in IEEE 802.1Q since 2014), whose annex on buffer requirements says how much arrives
after a pause is sent; [DCQCN] is Zhu et al., Congestion Control for Large-Scale RDMA Deployments, SIGCOMM
2015.

A pause here lasts until its resume. Real ones run out after 65,535 quanta of 512 bit times (335 us at 100
Gbit/s) and are renewed before; the frames that renew them are left out.
"""

from __future__ import annotations

from typing import Final

from mrclab.simulator.port import DATA, Node
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
