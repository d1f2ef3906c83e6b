"""Detection times, computed from made-up events and routes."""

from dataclasses import replace

import numpy as np
import pytest

from mrclab.experiments.measure.events import (
    NO_CHANGE,
    NO_ROUTING,
    NONE_RETIRED,
    OBLIVIOUS,
    detected,
    retirements_of_ranks,
    ways_between,
)
from mrclab.experiments.measure.evidence import RouteChange
from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.measure.recovery import EVENT_STAMP_NS, Measured, Span
from mrclab.hosts.transports.table import TRANSPORTS
from mrclab.topologies import load_fabric

TINY = load_fabric("tiny")
LINK = "p0-t0-0:p0-t1-0"
MS = 1_000_000
CUT = FaultRecord("blackhole", LINK, 100 * MS, 100 * MS + 20_000, 200 * MS, 200 * MS)
SPAN = Span(0, 300 * MS, 200 * MS, 200 * MS)
HOSTS, PAIRS = ("h0", "h2"), [("h0", "h2")]
BROKEN = sorted(path.ev for path in TINY.paths("h0", "h2") if CUT.breaks(path))
SOUND = sorted(path.ev for path in TINY.paths("h0", "h2") if not CUT.breaks(path))
ERROR_NS = CUT.half_width_ns + EVENT_STAMP_NS


def of(
    transport: str, retired: list[tuple[int, int]] | None = None, changes: tuple[RouteChange, ...] = ()
) -> Measured:
    """Return the detection time of a transport. ``retired`` has (time, EV) of the first rank."""
    columns = np.array(retired or [], np.int64).reshape(-1, 2)
    sample = {"event_retired_ns": columns[:, 0], "event_retired_ev": columns[:, 1]}
    ranks = retirements_of_ranks(HOSTS, [sample, {}])
    return detected(TRANSPORTS[transport], ways_between(TINY, PAIRS), ranks, changes, CUT, SPAN)


def test_mrc_detects_with_the_first_broken_ev() -> None:
    assert BROKEN
    assert SOUND
    ev = BROKEN[0]
    events = [(100 * MS + 310_000, ev), (90 * MS, ev), (100 * MS + 50_000, SOUND[0]), (101 * MS, ev)]
    assert of("mrc", events) == Measured(300_000, ERROR_NS)


def test_mrc_that_retired_nothing_has_no_time_but_a_reason() -> None:
    assert of("mrc") == Measured(None, reason=NONE_RETIRED)
    assert of("mrc", [(250 * MS, BROKEN[0])]) == Measured(None, reason=NONE_RETIRED)  # after the repair


def test_routes_tell_of_transports_that_leave_the_path_to_the_fabric() -> None:
    changes = (
        RouteChange(50 * MS, 51 * MS),
        RouteChange(150 * MS, 152 * MS),
        RouteChange(230 * MS, 231 * MS),
    )
    for name in ("ecmp+controller", "frr"):
        assert of(name, changes=changes) == Measured(50 * MS - 10_000, ERROR_NS)
        assert of(name) == Measured(None, reason=NO_CHANGE)


@pytest.mark.parametrize(
    ("transport", "why"), [("oblivious", OBLIVIOUS), ("rocev2", NO_ROUTING), ("tcp", NO_ROUTING)]
)
def test_what_does_not_apply_says_so(transport: str, why: str) -> None:
    assert of(transport) == Measured(None, reason=why)
    assert why.startswith("not applicable: ")


@pytest.mark.parametrize(
    ("kind", "where", "planes"),
    [("plane-death", "p0", {0}), ("port-down", "h0-eth1", {1}), ("port-down", "h2-eth0", {0})],
)
def test_a_dead_plane_or_port_breaks_every_path_of_its_plane(kind: str, where: str, planes: set[int]) -> None:
    fault = replace(CUT, kind=kind, where=where)
    assert {p.plane for p in TINY.paths("h0", "h2") if fault.breaks(p)} == planes
    assert not any(fault.breaks(p) for p in TINY.paths("h1", "h3") if where.startswith("h"))
