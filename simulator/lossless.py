"""Links that lose no frame because of a full buffer: the kinds of these links, and their buffers."""

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
"""The least size of a buffer, in frames. A buffer smaller than one frame could receive nothing."""


@dataclass(frozen=True, slots=True)
class Lossless:
    """How links stop a sender whose frames would not fit into the receiver's buffer.

    With PFC, a pause is sent when the buffer holds `buffer_bytes` (XOFF). The buffer is larger than XOFF: it
    also has headroom. With credits, the size of the buffer is `buffer_bytes`. If `buffer_bytes` is 0, `join`
    chooses: XOFF is `usual_bytes`, and a buffer with credits has `usual_bytes` plus headroom.
    """

    mode: Mode
    buffer_bytes: int = 0
    response_ns: int = RESPONSE_NS

    @property
    def port_class(self) -> type[ServedPort]:
        """The class of the ports of links with this flow control."""
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
    """Create and return the receiving end of a link that leads to `node`.

    `reverse` is the sending end of the other direction. `onward` are the ports of the node. `usual_bytes` is
    XOFF if `buffer_bytes` of `lossless` is 0.
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
