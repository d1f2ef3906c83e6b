"""Which of our ports and of the peers' ports are up, and how both sides learn of it [P1 §3, SPEC §7.4.8].

All EVs of a plane leave the rotation as soon as either port goes down, and the packets in flight there are
sent again on other planes. Peers learn of our ports by PORT_STATUS_UPDATE, so that they stop sending to one
that is down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from mrclab.hosts.mrc.config import MrcConfig
from mrclab.hosts.mrc.events import PortStatusUnanswered
from mrclab.hosts.mrc.operations import Operations
from mrclab.hosts.mrc.queue_pair import MrcQueuePair
from mrclab.hosts.mrc.wire import TIMESTAMP_UNIT_NS
from mrclab.hosts.rdma.events import Event, Status

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
        self._changed = False
        """A port of ours has gone down, now or in the past."""
        self._newest: dict[frozenset[bytes], tuple[int, int, int, int]] = {}
        """Of each peer's newest update: when it arrived, its timestamp, its request id and its mask."""
        self._new: list[MrcQueuePair] = []
        """QPs whose peers get an announcement with the next frames."""
        operations.port_mask = self.mask()
        operations.on_update = self.on_update

    def mask(self) -> int:
        """Return the mask of ports that are up, as PORT_STATUS_UPDATE carries it."""
        return sum(1 << port for port, up in self._up.items() if up)

    def is_up(self, port: int) -> bool:
        """Return whether a port of ours is up."""
        return self._up[port]

    def apply(self, now_ns: int, qp: MrcQueuePair) -> None:
        """Take the planes of ports that are down, at either end, out of a new QP's rotation.

        If a port of ours has ever been down, the present state is announced: the peer may have none, or an
        old one. A peer that connects too late for this gets an announcement when it sends something.
        """
        for port, up in self._up.items():
            if not up:
                qp.evs.set_plane(now_ns, port, False, remote=False)
        newest = self._newest.get(qp.peers)
        if newest is not None:
            self._apply_mask(now_ns, qp, newest[3])
        if self._changed:
            self._tell(qp)
            self._tell_when_heard(qp)

    def forget(self, qp: MrcQueuePair, others: Iterable[MrcQueuePair]) -> None:
        """Drop the state of a peer's ports with the last QP to it: no update comes any more."""
        peers = qp.peers
        if peers in self._newest and not any(other.peers == peers for other in others):
            del self._newest[peers]

    def announce_new(self, now_ns: int) -> None:
        """Announce the ports for QPs that were connected since the last call, once to each peer."""
        if self._new:
            for new in {qp.peers: qp for qp in self._new if qp.connected}.values():
                self._operations.announce_ports(now_ns, new)
            self._new = []

    def _tell(self, qp: MrcQueuePair) -> None:
        self._new.append(qp)
        self._operations.waiting = True

    def _tell_when_heard(self, qp: MrcQueuePair) -> None:
        """Announce the ports once there is something of the peer to answer, unless that is done by then.

        Nothing is left of this afterwards that would cost each packet something.
        """
        responder = qp.responder
        wake = responder.wake

        def heard() -> None:
            responder.wake = wake
            if qp.peers not in self._operations.told:
                self._tell(qp)
            wake()

        responder.wake = heard

    def set_state(self, now_ns: int, port: int, up: bool, qps: Iterable[MrcQueuePair]) -> None:
        """Take note of a port of ours that went down or came up, and let the peers know."""
        self._up[port] = up
        self._changed = True
        self._operations.port_mask = self.mask()
        connected = [qp for qp in qps if qp.connected]
        if not any(self._up.values()) and self._config.all_ports_down == "error":
            for qp in connected:
                qp.requester.fail(now_ns, Status.RETRY_EXCEEDED, "all ports are down", None)
        announced: set[frozenset[bytes]] = set()
        for qp in connected:
            qp.evs.set_plane(now_ns, port, up, remote=False)
            if not up:
                qp.requester.losses.on_port_down(now_ns, port)
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
        self._newest[peers] = now_ns, stamp, request_id, mask
        for qp in qps:
            self._apply_mask(now_ns, qp, mask)

    def _apply_mask(self, now_ns: int, qp: MrcQueuePair, mask: int) -> None:
        for plane in qp.evs.planes:
            up = bool(mask >> plane.port & 1)
            if plane.peer_up != up:
                qp.evs.set_plane(now_ns, plane.port, up, remote=True)
                if not up:
                    qp.requester.losses.on_port_down(now_ns, plane.port)
                self._wake(qp)

    def expire(self, now_ns: int, qps: Iterable[MrcQueuePair]) -> None:
        """Announce the ports again if updates went unanswered, up to so many attempts.

        If the QP that an update was sent for has been destroyed, announce them for another one to that peer.
        """
        for request in self._operations.expire(now_ns):
            qp = request.qp
            alive = qp if qp is not None and qp.connected else _first_to(request.peers, qps)
            if alive is None:
                continue
            if request.attempt < self._config.port_status_attempts:
                self._operations.announce_ports(now_ns, alive, request.attempt + 1)
            else:
                self._emit(PortStatusUnanswered(now_ns, alive.qpn, self.mask()))


def _first_to(peers: frozenset[bytes], qps: Iterable[MrcQueuePair]) -> MrcQueuePair | None:
    """Return a connected QP to this peer, if there is one."""
    for qp in qps:
        if qp.connected and qp.peers == peers:
            return qp
    return None
