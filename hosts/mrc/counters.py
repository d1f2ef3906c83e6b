"""Snapshots of what an MRC queue pair has counted, as a whole and by plane and EV."""

from __future__ import annotations

from dataclasses import dataclass

from mrclab.hosts.mrc.evs.ev_set import EvSet
from mrclab.hosts.mrc.queue_pair import MrcQueuePair
from mrclab.hosts.rdma.counters import EvCounters, EvState


@dataclass(frozen=True, slots=True)
class PlaneCounters:
    """A snapshot of one plane of a QP: its state, and its EVs' counters added up."""

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
    """A snapshot of one QP. Packets unless the name says otherwise."""

    qpn: int
    sent: int
    retransmitted: int
    lost: int
    spurious: int
    bytes_acked: int
    sacks_received: int
    nacks_received: int
    bogus_received: int
    """Answers to packets that were never sent."""
    placed: int
    bytes_placed: int
    duplicates: int
    out_of_window: int
    malformed: int
    """Packets with a right ICRC whose headers contradict their length."""
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
    """Return a snapshot of all EVs."""
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
    """Return a snapshot of each plane."""
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
