"""When a fault was detected, by a sender or by the routing, or why that is unknown. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mrclab.experiments.measure.events import EventLog
from mrclab.experiments.measure.evidence import RouteChange, Sample
from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.measure.recovery import EVENT_STAMP_NS, Measured, Retirements, Span
from mrclab.hosts.transports.table import Transport
from mrclab.topologies import Fabric
from mrclab.topologies import Path as FabricPath
from mrclab.topologies.structured import structured_paths

OBLIVIOUS = "not applicable: it retires no path and goes on using broken ones"
NO_ROUTING = "not applicable: it leaves the path to a fabric whose routes never change"
NONE_RETIRED = "no path that the fault broke was retired while it lasted"
NO_CHANGE = "no route changed while the fault lasted"


def retires_paths(transport: Transport) -> bool:
    """Return True if the senders of a transport detect broken paths themselves."""
    return transport.core.sprays and bool(transport.options.get("ev_health", True))


def retirements_of_log(log: EventLog) -> Retirements:
    """Return the retirements that an agent logged."""
    found = [(event.t_ns, ev) for event in log.of("EvRetired") if (ev := event.int_field("ev")) is not None]
    columns = np.array(found, np.int64).reshape(-1, 2)
    return Retirements(columns[:, 0], columns[:, 1])


def retirements_of_ranks(hosts: Sequence[str], samples: Sequence[Sample]) -> dict[str, Retirements]:
    """Return each host's retirements from the columns of its ranks (``Channel.event_columns``, each with
    ``event_`` before its name)."""
    parts: dict[str, list[Sample]] = {}
    for host, sample in zip(hosts, samples, strict=False):
        if "event_retired_ns" in sample:
            parts.setdefault(host, []).append(sample)
    found = {}
    for host, ours in parts.items():
        t_ns = np.concatenate([sample["event_retired_ns"] for sample in ours])
        ev = np.concatenate([sample["event_retired_ev"] for sample in ours])
        order = np.argsort(t_ns, kind="stable")
        found[host] = Retirements(t_ns[order], ev[order])
    return found


Ways = Mapping[tuple[str, str], Sequence[FabricPath]]
"""The paths between hosts that send to one another, each with its EV."""


def ways_between(fabric: Fabric, pairs: Sequence[tuple[str, str]], routing: str = "srv6") -> Ways:
    """Return the paths between pairs of hosts, with the EVs that name them: structured ones if the routing is
    structured, else those of segment lists."""
    paths = structured_paths if routing == "structured" else Fabric.paths
    return {(src, dst): paths(fabric, src, dst) for src, dst in pairs}


def detected(
    transport: Transport,
    ways: Ways,
    retired: Mapping[str, Retirements],
    changes: Sequence[RouteChange],
    fault: FaultRecord,
    span: Span,
) -> Measured:
    """Return when a fault was detected.

    ``ways`` are the paths of the hosts that send, ``retired`` the retirements of the senders (MRC), and
    ``changes`` those of routes (routed fabrics). Times come from an endpoint's or a switch's own stamps.
    """
    if transport.core.sprays:
        return (
            _by_retirements(ways, retired, fault, span)
            if retires_paths(transport)
            else Measured(None, reason=OBLIVIOUS)
        )
    if transport.detection_ns is None:
        return Measured(None, reason=NO_ROUTING)
    during = [c.noticed_ns for c in changes if fault.t_before_ns <= c.noticed_ns < span.repair_before]
    return _first(during, fault, NO_CHANGE)


def _by_retirements(
    ways: Ways,
    retired: Mapping[str, Retirements],
    fault: FaultRecord,
    span: Span,
) -> Measured:
    found: list[int] = []
    for (src, _), paths in ways.items():
        if src not in retired:
            continue
        broken = [path.ev for path in paths if fault.breaks(path)]
        during = retired[src].between(fault.t_before_ns, span.repair_after)
        found += during.t_ns[np.isin(during.ev, broken)].tolist()
    return _first(found, fault, NONE_RETIRED)


def _first(moments_ns: Sequence[int], fault: FaultRecord, reason: str) -> Measured:
    if not moments_ns:
        return Measured(None, reason=reason)
    return Measured(max(0, min(moments_ns) - fault.middle_ns), fault.half_width_ns + EVENT_STAMP_NS)
