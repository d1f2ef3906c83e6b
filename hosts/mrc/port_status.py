"""Which of our ports and of the peers' ports are up, and how both sides learn of it [P1 §3, SPEC §7.4.8].

All EVs of a plane leave the rotation as soon as either port goes down, and what is in flight there is sent
again on other planes. Peers learn of our ports by PORT_STATUS_UPDATE, so that they stop sending to one that
is down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from hosts.mrc.config import MrcConfig
from hosts.mrc.events import PortStatusUnanswered
from hosts.mrc.operations import Operations
from hosts.mrc.queue_pair import MrcQueuePair
from hosts.mrc.wire import TIMESTAMP_UNIT_NS
from hosts.rdma.events import Event, Status

_COMPARABLE_NS: Final = TIMESTAMP_UNIT_NS << 15


class PortStatus:
    """The state of one NIC's ports."""

    def __init__(
        self,
        config: MrcConfig,
        ports: Iterable[int],
        operations: Operations,
        emit: Callable[[Event], None],
        wake: Callable[[MrcQueuePair], None],
    ) -> None:
        self._config = config
        self._up = dict.fromkeys(ports, True)
        self._operations = operations
        self._emit = emit
        self._wake = wake
        self._newest: dict[frozenset[bytes], tuple[int, int, int]] = {}
        """Of each peer's newest update: when it arrived, its timestamp and its request id."""
        operations.port_mask = self.mask()

    def mask(self) -> int:
        """Return the mask of ports that are up, as PORT_STATUS_UPDATE carries it."""
        return sum(1 << port for port, up in self._up.items() if up)

    def is_up(self, port: int) -> bool:
        """Return whether a port of ours is up."""
        return self._up[port]

    def apply(self, now_ns: int, qp: MrcQueuePair) -> None:
        """Take the planes of the ports that are down out of a new QP's rotation."""
        for port, up in self._up.items():
            if not up:
                qp.evs.set_plane(now_ns, port, False, remote=False)

    def set_state(self, now_ns: int, port: int, up: bool, qps: Iterable[MrcQueuePair]) -> None:
        """Take note of a port of ours that went down or came up, and let the peers know."""
        self._up[port] = up
        self._operations.port_mask = self.mask()
        connected = [qp for qp in qps if qp.connected]
        if not any(self._up.values()) and self._config.all_ports_down == "error":
            for qp in connected:
                qp.requester.fail(now_ns, Status.RETRY_EXCEEDED, "all ports are down", None)
        announced: set[frozenset[bytes]] = set()
        for qp in connected:
            qp.evs.set_plane(now_ns, port, up, remote=False)
            if not up:
                qp.requester.on_port_down(now_ns, port)
            self._wake(qp)
            if qp.peers not in announced:
                announced.add(qp.peers)
                self._operations.announce_ports(now_ns, qp)

    def on_update(
        self, now_ns: int, mask: int, stamp: int, request_id: int, qps: Sequence[MrcQueuePair]
    ) -> None:
        """Take in a peer's PORT_STATUS_UPDATE for the QPs that are connected to it.

        The network may change the order of updates, so one that was sent before the newest is left out.
        Ports that change together have updates of one timestamp, in the order of their ids. Both wrap:
        timestamps are compared for half of that time.
        """
        peers = qps[0].peers
        newest = self._newest.get(peers)
        if newest is not None and now_ns - newest[0] < _COMPARABLE_NS:
            later = stamp - newest[1] or request_id - newest[2]
            if later & 0x8000:
                return
        self._newest[peers] = now_ns, stamp, request_id
        for qp in qps:
            for plane in qp.evs.planes:
                up = bool(mask >> plane.port & 1)
                if plane.peer_up != up:
                    qp.evs.set_plane(now_ns, plane.port, up, remote=True)
                    if not up:
                        qp.requester.on_port_down(now_ns, plane.port)
                    self._wake(qp)

    def expire(self, now_ns: int) -> None:
        """Announce the ports anew where updates went unanswered, up to so many attempts."""
        for request in self._operations.expire(now_ns):
            if request.attempt < self._config.port_status_attempts:
                self._operations.announce_ports(now_ns, request.qp, request.attempt + 1)
            else:
                self._emit(PortStatusUnanswered(now_ns, request.qp.qpn, self.mask()))
