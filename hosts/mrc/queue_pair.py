"""An MRC queue pair: its two halves, the state that it shares with other queue pairs, and its counters.

The requester and the responder use the same EVs towards the peer. A NIC has one EV set for each queue pair,
or one for all queue pairs to a peer (option `ev_sets`). With NSCC, queue pairs to one peer share a congestion
window. Counters are snapshots: of the queue pair as a whole, by plane and by EV.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from mrclab.hosts.mrc.config import MrcConfig, NsccConfig
from mrclab.hosts.mrc.congestion import CongestionControl, make_controller
from mrclab.hosts.mrc.connection import Connection, QpAttributes
from mrclab.hosts.mrc.evs.ev_set import EvSet
from mrclab.hosts.mrc.responder import Responder
from mrclab.hosts.mrc.sending.requester import Requester
from mrclab.hosts.rdma.events import EvCounters, EvState
from mrclab.hosts.rdma.frames import PSN_BITS, Outgoing
from mrclab.hosts.rdma.scheduler import QueuePair, SharedWindow

_TURN: Final = 16
_SHARED_TURN: Final = 8
"""Frames per turn if queue pairs share a window. In a longer turn, one queue pair might fill the window."""


class MrcQueuePair(QueuePair):
    """One queue pair of an MRC endpoint."""

    def __init__(self, qpn: int, psn: int, requester: Requester, responder: Responder) -> None:
        super().__init__(qpn, _TURN)
        self.psn = psn
        """First PSN that the queue pair sends, 24 bits."""
        self.requester = requester
        self.responder = responder
        self.reverse_due_ns = 0
        """Earliest time of the next probe that checks an EV for answers."""
        # connect() sets these fields.
        self.evs: EvSet
        self.remote: QpAttributes

    def connect(
        self,
        remote: QpAttributes,
        peers: frozenset[bytes],
        connection: Connection,
        evs: EvSet,
        controller: CongestionControl,
        sharing: SharedWindow | None,
    ) -> None:
        """Connect to a peer; `sharing` lists the queue pairs that share a congestion window, if any."""
        self.remote = remote
        self.peers = peers
        self.evs = evs
        self.requester.connect(connection, evs, controller)
        self.sharing = sharing
        self.turn = _TURN if sharing is None else _SHARED_TURN
        self.responder.connect(connection, evs)
        self.connected = True

    def begin_at(self, psn: int) -> None:
        """Set the first PSN to send, 24 bits. Raise ValueError if a packet has been sent already."""
        requester = self.requester
        if requester.packets_sent or requester.error is not None:
            raise ValueError("the first PSN is set before anything is sent")
        board = requester.board
        board.una = board.next_psn = requester.in_memory = psn + (1 << PSN_BITS)
        self.psn = psn

    def limit_sending(self, mpr: int, max_wimm: int) -> None:
        """Limit unacknowledged PSNs and writes with immediate; a lower limit of the peer still applies."""
        requester = self.requester
        requester.most_mpr = min(requester.most_mpr, mpr)
        requester.mpr = min(requester.mpr, mpr)
        requester.queue.max_imms = min(requester.queue.max_imms, max_wimm)

    def set_ack_timer(self, exponent: int, linear: int, exponential: int) -> None:
        """Set the ACK timeout, 1.024 us * 2^exponent, and its retries [SPEC Table 7-1]."""
        self.requester.recovery.ack_timer.choose(exponent, linear, exponential)

    def has_data(self) -> bool:
        """Return whether a packet waits to be sent, even if congestion control does not allow it now."""
        return self.requester.has_data()

    def wants_to_send(self, now_ns: int) -> bool:
        """Return whether `emit_frames` might append a frame now."""
        return self.requester.wants_to_send(now_ns)

    def wants_to_probe(self) -> bool:
        """Return whether there are probes to send."""
        return self.requester.wants_to_probe()

    def emit_frames(
        self, now_ns: int, out: list[Outgoing], limit: int, free_ports: Collection[int] | None
    ) -> int:
        """Append up to `limit` frames (only probes if the shared window is full). Return their number."""
        if self.parked:
            return self.requester.emit_probes(now_ns, out, limit, free_ports)
        return self.requester.emit_frames(now_ns, out, limit, free_ports)

    def emit_answers(
        self, now_ns: int, out: list[Outgoing], limit: int, free_ports: Collection[int] | None
    ) -> bool:
        """Append SACKs, NACKs and transport ACKs. Return True if some are left."""
        self.responder.emit_frames(now_ns, out, limit, free_ports)
        return self.responder.answering

    def budget_bytes(self, now_ns: int) -> int:
        """Return how many bytes congestion control allows now."""
        return self.requester.congestion.budget_bytes(now_ns)

    def next_send_ns(self, now_ns: int) -> int | None:
        """Return when more bytes may be sent even if no acknowledgement arrives; None: never."""
        return self.requester.congestion.next_send_ns(now_ns)

    def next_timer(self, now_ns: int) -> int | None:
        """Return when to call `handle_timer`. If the rate cap allows packets again, return `now_ns`."""
        requester = self.requester
        congestion = requester.congestion
        if (
            congestion.paced
            and not self.queued
            and requester.has_data()
            and congestion.budget_bytes(now_ns) > 0
        ):
            return now_ns
        return requester.next_timer(now_ns)

    def handle_timer(self, now_ns: int) -> None:
        """Do the work that is due."""
        self.requester.handle_timer(now_ns)


class EvSets:
    """The EV sets that queue pairs share, and the number of users of each set."""

    def __init__(self) -> None:
        self._shared: dict[tuple[frozenset[bytes], MrcConfig, int | None], EvSet] = {}
        self._users: dict[int, int] = {}
        """How many queue pairs use each shared set. The key is the number of the set's first queue pair."""

    def of(self, peers: frozenset[bytes], config: MrcConfig, profile: int | None) -> EvSet | None:
        """Return the shared set for a new queue pair to a peer; None if the queue pair needs a new set.

        Queue pairs share only a set of their EV profile, because its EVs and its denylist are the profile's.
        """
        found = self._shared.get((peers, config, profile))
        if found is not None:
            self._users[found.qpn] += 1
        return found

    def add(self, peers: frozenset[bytes], evs: EvSet, profile: int | None) -> None:
        """Add a queue pair's new set. With `ev_sets` = `peer`, later queue pairs to the peer share it."""
        if evs.config.ev_sets == "peer":
            self._shared[peers, evs.config, profile] = evs
            self._users[evs.qpn] = 1

    def leave(self, evs: EvSet) -> None:
        """Record that a queue pair of an EV set has ended. Remove a shared set after its last queue pair."""
        left = self._users.get(evs.qpn, 0) - 1
        if left > 0:
            self._users[evs.qpn] = left
        elif left == 0:
            del self._users[evs.qpn]
            self._shared = {key: kept for key, kept in self._shared.items() if kept is not evs}


Made = tuple[CongestionControl, SharedWindow]


class Windows:
    """The congestion controls that queue pairs share, and the queue pairs that wait for room in them."""

    def __init__(self, other: Callable[[MrcConfig], CongestionControl] | None) -> None:
        """Store `other`, an argument of `make_controller`."""
        self._other = other
        self.shared: dict[tuple[frozenset[bytes], str, NsccConfig], Made] = {}

    def of(self, peers: frozenset[bytes], config: MrcConfig) -> tuple[CongestionControl, SharedWindow | None]:
        """Return the congestion control for a peer and, if it is shared, the queue pairs that share it."""
        key = peers, config.congestion, config.nscc
        found = self.shared.get(key)
        if found is not None:
            return found
        controller = make_controller(config, self._other)
        if not controller.shared:
            return controller, None
        made = controller, SharedWindow()
        self.shared[key] = made
        return made


@dataclass(frozen=True, slots=True)
class PlaneCounters:
    """A snapshot of one plane of a QP: its state, and the sums of its EVs' counters."""

    plane: int
    local_up: bool
    peer_up: bool
    active: int
    spare: int
    assumed_bad: int
    denied: int
    sent: int
    acked: int
    lost: int
    ecn_marked: int
    trimmed: int
    retired: int


@dataclass(frozen=True, slots=True)
class QpCounters:
    """A snapshot of one QP. Counters count packets if their names give no other unit."""

    qpn: int
    sent: int
    retransmitted: int
    lost: int
    spurious: int
    bytes_acked: int
    sacks_received: int
    nacks_received: int
    bogus_received: int
    """Number of answers to packets that were never sent."""
    placed: int
    bytes_placed: int
    duplicates: int
    out_of_window: int
    malformed: int
    """Number of packets with a correct ICRC whose headers do not fit their length."""
    ce_received: int
    trims_received: int
    sacks_sent: int
    nacks_sent: int
    srtt_ns: int
    rttvar_ns: int
    reordering_window_ns: int
    inflight_bytes: int
    cwnd_bytes: int


def qp_counters(qp: MrcQueuePair, now_ns: int) -> QpCounters:
    """Return a snapshot of a QP's counters."""
    q, r = qp.requester, qp.responder
    return QpCounters(
        qpn=qp.qpn,
        sent=q.packets_sent,
        retransmitted=q.packets_retransmitted,
        lost=q.losses.lost,
        spurious=q.losses.spurious,
        bytes_acked=q.bytes_acked,
        sacks_received=q.sacks_received,
        nacks_received=q.nacks_received,
        bogus_received=q.bogus_received,
        placed=r.packets_placed,
        bytes_placed=r.bytes_placed,
        duplicates=r.duplicates,
        out_of_window=r.out_of_window,
        malformed=r.malformed,
        ce_received=r.ce_received,
        trims_received=r.trims_received,
        sacks_sent=r.sacks_sent,
        nacks_sent=r.nacks_sent,
        srtt_ns=q.recovery.rtt.srtt_ns,
        rttvar_ns=q.recovery.rtt.var_ns,
        reordering_window_ns=q.recovery.window.ns(now_ns),
        inflight_bytes=q.board.inflight_bytes,
        cwnd_bytes=q.congestion.cwnd_bytes,
    )


def ev_counters(evs: EvSet) -> list[EvCounters]:
    """Return the state and counters of each EV."""
    return [
        EvCounters(
            ev.value,
            ev.port,
            ev.state,
            ev.active,
            ev.sent,
            ev.acked,
            ev.lost,
            ev.ecn_marked,
            ev.trimmed,
            ev.retired,
        )
        for plane in evs.planes
        for ev in plane.evs
    ]


def plane_counters(evs: EvSet) -> list[PlaneCounters]:
    """Return the state and counters of each plane."""
    return [
        PlaneCounters(
            plane.port,
            plane.local_up,
            plane.peer_up,
            len(plane.active),
            len(plane.spares),
            sum(ev.state is EvState.ASSUMED_BAD for ev in plane.evs),
            sum(ev.state is EvState.DENIED for ev in plane.evs),
            sum(ev.sent for ev in plane.evs),
            sum(ev.acked for ev in plane.evs),
            sum(ev.lost for ev in plane.evs),
            sum(ev.ecn_marked for ev in plane.evs),
            sum(ev.trimmed for ev in plane.evs),
            sum(ev.retired for ev in plane.evs),
        )
        for plane in evs.planes
    ]
