"""Links on which no frame is lost for want of a buffer: of which kind, with which buffers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from mrclab.simulator.clock import PS_PER_NS
from mrclab.simulator.flow_control import (
    PAUSE_BYTES,
    RESPONSE_NS,
    UPDATE_BYTES,
    XON_FRAMES,
    CreditInlet,
    CreditPort,
    PfcInlet,
    PfcPort,
    headroom_bytes,
)
from mrclab.simulator.port import Node, Port
from mrclab.simulator.served import Inlet, ServedPort

Mode = Literal["pfc", "credit"]
LEAST_FRAMES = 4
"""A buffer's smallest room, in frames: with less than one nothing would ever be sent."""


@dataclass(frozen=True, slots=True)
class Lossless:
    """How links stop a sender whose frames would find no room at the receiver.

    `buffer_bytes` is the fill at which a pause is sent (XOFF); headroom for frames on their way is added.
    With credits the buffer is as large as both together. 0 means the size of a full queue.
    """

    mode: Mode
    buffer_bytes: int = 0
    response_ns: int = RESPONSE_NS

    @property
    def port_class(self) -> type[ServedPort]:
        """The class of its ports."""
        return PfcPort if self.mode == "pfc" else CreditPort


def join(
    lossless: Lossless,
    port: ServedPort,
    reverse: ServedPort,
    node: Node,
    frame_bytes: int,
    usual_bytes: int,
    onward: Iterable[Port] = (),
) -> Inlet:
    """Give a link its receiving end, in front of `node`, and return it.

    `reverse` is the sending end of the other direction, `onward` are the ports of the node, `usual_bytes` is
    the buffer where `lossless` names none.
    """
    xoff = max(lossless.buffer_bytes or usual_bytes, LEAST_FRAMES * frame_bytes)
    response_ps = lossless.response_ns * PS_PER_NS
    headroom = headroom_bytes(port.rate_bps, port.delay_ps, frame_bytes, response_ps)
    inlet: Inlet
    if isinstance(port, PfcPort) and isinstance(reverse, PfcPort):
        inlet = PfcInlet(port, node, reverse, xoff, xoff - XON_FRAMES * frame_bytes, headroom)
        port.signal_bytes, port.response_ps = PAUSE_BYTES, response_ps
    else:
        assert isinstance(port, CreditPort)
        assert isinstance(reverse, CreditPort)
        inlet = CreditInlet(port, node, reverse, lossless.buffer_bytes or xoff + headroom)
        port.signal_bytes = UPDATE_BYTES
    inlet.onward = [way for way in onward if isinstance(way, ServedPort)]
    port.inlet = inlet
    port.peer = inlet
    return inlet
