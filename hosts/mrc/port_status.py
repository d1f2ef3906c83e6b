"""Which local ports and which ports of the peers are up, and how NICs report this [P1 §3, SPEC §7.4.8].

If the local or the peer's port of a plane goes down, all EVs of the plane leave the rotation at once. Packets
in flight in this plane are sent again on other planes. A PORT_STATUS_UPDATE reports the local ports to the
peers, so that the peers do not send to a port that is down.
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
        """True: a local port has gone down at least once."""
        self._newest: dict[frozenset[bytes], tuple[int, int, int, int]] = {}
        """The newest update of each peer: time of arrival, timestamp, request id and mask."""
        self._new: list[MrcQueuePair] = []
        """QPs whose peers get an announcement with the next frames."""
        operations.port_mask = self.mask()
        operations.on_update = self.on_update

    def mask(self) -> int:
        """Return the mask of ports that are up, as in a PORT_STATUS_UPDATE."""
        return sum(1 << port for port, up in self._up.items() if up)

    def is_up(self, port: int) -> bool:
        """Return whether a local port is up."""
        return self._up[port]

    def apply(self, now_ns: int, qp: MrcQueuePair) -> None:
        """Remove the planes whose port is down, at either end, from a new QP's rotation.

        If a local port has ever been down, announce the present state, because the peer may know an old
        state. A peer that connects too late for this announcement gets another one after its first packet.
        """
        for port, up in self._up.items():
            if not up:
                qp.evs.set_plane(now_ns, port, False, remote=False)
        newest = self._newest.get(qp.peers)
        if newest is not None:
            self._apply_mask(now_ns, [qp], newest[3])
        if self._changed:
            self._tell(qp)
            self._tell_when_heard(qp)

    def forget(self, qp: MrcQueuePair, others: Iterable[MrcQueuePair]) -> None:
        """If `qp` was the last QP to its peer, forget the peer's ports: the peer sends no more updates."""
        peers = qp.peers
        if peers in self._newest and not any(other.peers == peers for other in others):
            del self._newest[peers]

    def announce_new(self, now_ns: int) -> None:
        """Announce the ports to the peers of the QPs that were connected since the last call."""
        if self._new:
            for new in {qp.peers: qp for qp in self._new if qp.connected}.values():
                self._operations.announce_ports(now_ns, new)
            self._new = []

    def _tell(self, qp: MrcQueuePair) -> None:
        self._new.append(qp)
        self._operations.waiting = True

    def _tell_when_heard(self, qp: MrcQueuePair) -> None:
        """Announce the ports when the first packet of the peer arrives, if the peer has no announcement yet.

        Replace the responder's callback `wake` for one call, so that later packets cost nothing.
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
        """Record that a local port went down or came up, and announce it to the peers."""
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
        """Apply a peer's PORT_STATUS_UPDATE to the QPs that are connected to the peer.

        The network may reorder updates, so an update older than the newest is ignored. Updates with the same
        timestamp are compared by their request ids. Timestamps wrap around, so they are compared only within
        half of their range.
        """
        peers = qps[0].peers
        newest = self._newest.get(peers)
        if newest is not None and now_ns - newest[0] < _COMPARABLE_NS:
            later = stamp - newest[1] or request_id - newest[2]
            if later & 0x8000:
                return
        self._newest[peers] = now_ns, stamp, request_id, mask
        self._apply_mask(now_ns, qps, mask)

    def _apply_mask(self, now_ns: int, qps: Sequence[MrcQueuePair], mask: int) -> None:
        # First find all changes: QPs may share a set of EVs, and the first of them changes it for all.
        changes = [
            (qp, plane.port, not plane.peer_up)
            for qp in qps
            for plane in qp.evs.planes
            if plane.peer_up != bool(mask >> plane.port & 1)
        ]
        for qp, port, up in changes:
            qp.evs.set_plane(now_ns, port, up, remote=True)
            if not up:
                qp.requester.losses.on_port_down(now_ns, port)
            self._wake(qp)

    def expire(self, now_ns: int, qps: Iterable[MrcQueuePair]) -> None:
        """Announce the ports again if a peer has not answered, up to `port_status_attempts` times.

        If the QP of an update has been destroyed, use another QP to the same peer.
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
    """Return a connected QP to the peer with the addresses `peers`, or None if there is no such QP."""
    for qp in qps:
        if qp.connected and qp.peers == peers:
            return qp
    return None
