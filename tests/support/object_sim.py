"""The network of `mrc_sim` with endpoints whose packets are Python objects."""

from __future__ import annotations

from functools import partial
from typing import Any

from mrclab.hosts.mrc import Endpoint
from mrclab.hosts.mrc.packets import DataPacket, Packet
from mrclab.p4src.contract import TRIMMED_DSCP, TRIMMED_LAST_HOP_DSCP
from tests.support.mrc_sim import TRIMMED_LENGTH, Sim


class ObjectSim(Sim):
    """Like `Sim`, but packets are objects, not bytes. It can neither corrupt frames nor store frames."""

    def __init__(self, **options: Any) -> None:
        super().__init__(endpoint_class=partial(Endpoint, objects=True), **options)

    def taken_from(self, end: Endpoint) -> list[tuple[int, Packet]]:
        return end.packets_to_send(self.now_ns, None, self.batch)

    def hand_over(self, end: Endpoint, port: int, frame: Packet) -> None:
        end.receive_packet(port, frame, self.now_ns)

    def ev_of(self, frame: Packet) -> int:
        return frame.flow.ev

    def length_of(self, frame: Packet) -> int:
        return frame.frame_bytes

    def is_data(self, frame: Packet) -> bool:
        return isinstance(frame, DataPacket)

    def trimmed(self, frame: DataPacket, *, last_hop: bool) -> Packet:
        frame.cut(TRIMMED_LAST_HOP_DSCP if last_hop else TRIMMED_DSCP, TRIMMED_LENGTH)
        return frame

    def marked(self, frame: Packet) -> Packet:
        frame.ce = True
        return frame
