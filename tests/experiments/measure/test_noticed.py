"""Detect and switch of a comparison, from events and routes whose times were chosen here."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from experiments.measure.faults import FaultRecord
from experiments.measure.noticed import (
    NO_CHANGE,
    NO_ROUTING,
    NONE_RETIRED,
    OBLIVIOUS,
    STILL_USED,
    Noticed,
    RouteChange,
    noticed,
)
from experiments.spec.transports import NAMED
from topologies import load_fabric

TINY = load_fabric("tiny")
LINK = "p0-t0-0:p0-t1-0"
MS = 1_000_000
CUT = FaultRecord("blackhole", LINK, 100 * MS, 100 * MS + 20_000, 200 * MS, 200 * MS)
HOSTS, PAIRS = ("h0", "h2"), ((0, 1),)
BROKEN = sorted(path.ev for path in TINY.paths("h0", "h2") if CUT.breaks(path))
SOUND = sorted(path.ev for path in TINY.paths("h0", "h2") if not CUT.breaks(path))

Columns = dict[str, npt.NDArray[np.int64]]


def events(retired: list[tuple[int, int]], lost: list[tuple[int, int, int]]) -> Columns:
    """(when, EV) of those retired; (when, when sent, EV) of packets lost."""
    columns = {
        "retired_ns": [r[0] for r in retired],
        "retired_ev": [r[1] for r in retired],
        "lost_ns": [p[0] for p in lost],
        "lost_sent_ns": [p[1] for p in lost],
        "lost_ev": [p[2] for p in lost],
    }
    return {f"event_{name}": np.array(values, np.int64) for name, values in columns.items()}


def of(transport: str, sample: Columns | None = None, changes: tuple[RouteChange, ...] = ()) -> Noticed:
    samples = [sample or {}, {}]
    (found,) = noticed(NAMED[transport], TINY, HOSTS, PAIRS, samples, changes, [CUT], 300 * MS)
    return found


def test_mrc_notices_with_the_first_broken_ev_and_leaves_with_the_last_packet_lost_on_one() -> None:
    assert BROKEN
    assert SOUND
    ev = BROKEN[0]
    sample = events(
        [(90 * MS, ev), (100 * MS + 50_000, SOUND[0]), (100 * MS + 310_000, ev)],
        [(100 * MS + 300_000, 100 * MS + 40_000, ev), (100 * MS + 310_000, 100 * MS + 210_000, ev)],
    )
    assert of("mrc", sample) == Noticed(300_000, 200_000)


def test_a_packet_that_was_under_way_when_the_fault_came_counts_as_no_time() -> None:
    ev = BROKEN[0]
    sample = events([(100 * MS + 110_000, ev)], [(100 * MS + 110_000, 100 * MS - 5_000, ev)])
    assert of("mrc", sample) == Noticed(100_000, 0)


def test_what_was_never_retired_has_no_time_but_a_reason() -> None:
    assert of("mrc", events([], [])) == Noticed(None, None, NONE_RETIRED, NONE_RETIRED)
    first, other = BROKEN[0], BROKEN[0] + 1 if len(BROKEN) == 1 else BROKEN[1]
    if other in BROKEN:
        sample = events([(110 * MS, first)], [(110 * MS, 109 * MS, first), (120 * MS, 119 * MS, other)])
        found = of("mrc", sample)
        assert found.detect_ns == 10 * MS - 10_000
        assert (found.switch_ns, found.switch_reason) == (None, STILL_USED)


def test_routes_tell_of_transports_that_leave_the_path_to_the_fabric() -> None:
    changes = (
        RouteChange(50 * MS, 51 * MS),
        RouteChange(150 * MS, 152 * MS),
        RouteChange(155 * MS, 156 * MS),
        RouteChange(230 * MS, 231 * MS),
    )
    for name in ("ecmp+controller", "frr"):
        assert of(name, changes=changes) == Noticed(50 * MS - 10_000, 56 * MS - 10_000)
        assert of(name) == Noticed(None, None, NO_CHANGE, NO_CHANGE)


@pytest.mark.parametrize(
    ("transport", "why"), [("oblivious", OBLIVIOUS), ("rocev2", NO_ROUTING), ("tcp", NO_ROUTING)]
)
def test_what_does_not_apply_says_so(transport: str, why: str) -> None:
    found = of(transport)
    assert found == Noticed(None, None, why, why)
    assert found.to_dict() == {
        "detect_us": None,
        "switch_us": None,
        "detect_reason": why,
        "switch_reason": why,
    }
    assert why.startswith("not applicable: ")


@pytest.mark.parametrize(
    ("kind", "where", "planes"),
    [("plane-death", "p0", {0}), ("port-down", "h0-eth1", {1}), ("port-down", "h2-eth0", {0})],
)
def test_a_dead_plane_or_port_breaks_every_path_of_its_plane(kind: str, where: str, planes: set[int]) -> None:
    fault = replace(CUT, kind=kind, where=where)
    assert {p.plane for p in TINY.paths("h0", "h2") if fault.breaks(p)} == planes
    assert not any(fault.breaks(p) for p in TINY.paths("h1", "h3") if where.startswith("h"))
