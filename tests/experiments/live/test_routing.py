"""How faults change routes: the links that a fault silences, and the timers that detect a silent link."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from mrclab.experiments.live.fabrics import Reaction, require_mptcp
from mrclab.experiments.run.late_detection import fabric_links
from mrclab.experiments.spec.fault_schedule import PlannedFault
from mrclab.hosts.transports import DEPLOYED
from mrclab.hosts.transports.table import TRANSPORTS
from mrclab.linux.errors import MachineError
from mrclab.testbed.lab import Lab
from mrclab.topologies import load_fabric

TINY = load_fabric("tiny")
LINK = "p0-t0-0:p0-t1-1"
MS = 1_000_000


@dataclass
class Routes:
    """A fake controller that records its calls."""

    asked: list[tuple[str, str, str]] = field(default_factory=list)

    def withdraw(self, a: str, b: str) -> None:
        self.asked.append(("withdraw", a, b))

    def restore(self, a: str, b: str) -> None:
        self.asked.append(("restore", a, b))


def reaction(name: str = "ecmp+controller") -> tuple[Reaction, Routes]:
    lab: Any = Lab.__new__(Lab)
    lab.fabric, lab.controller = TINY, Routes()
    return Reaction(lab, TRANSPORTS[name], 1), lab.controller


def fault(kind: str = "blackhole", place: str = LINK) -> PlannedFault:
    return PlannedFault(kind, place, 0, None)


def test_a_place_stands_for_links_between_switches() -> None:
    assert list(fabric_links(TINY, LINK)) == [LINK]
    assert list(fabric_links(TINY, "p1-t1-0")) == ["p1-t0-0:p1-t1-0", "p1-t0-1:p1-t1-0"]
    assert len(list(fabric_links(TINY, "p1"))) == 4
    assert list(fabric_links(TINY, "h0:p0-t0-0")) == []


def test_a_silent_link_is_withdrawn_within_its_detection_time_and_restored_after_the_repair() -> None:
    acting, routes = reaction()
    acting.note(fault(), 1000 * MS, False)
    due = acting.next_ns
    assert due is not None
    assert 1100 * MS < due <= 1150 * MS
    acting.act(due - 1)
    assert routes.asked == []
    acting.act(due)
    assert routes.asked == [("withdraw", "p0-t0-0", "p0-t1-1")]
    acting.note(fault(), 2000 * MS, True)
    acting.act(2050 * MS)
    assert routes.asked[1:] == [("restore", "p0-t0-0", "p0-t1-1")]
    assert [(made.link, made.up) for made in acting.made] == [(LINK, False), (LINK, True)]
    assert acting.next_ns is None
    acting.undo_all()
    assert len(routes.asked) == 2


def test_what_is_still_withdrawn_at_the_end_comes_back() -> None:
    acting, routes = reaction()
    acting.note(fault("switch-death", "p0-t1-1"), 0, False)
    acting.act(1000 * MS)
    assert len(routes.asked) == 2
    acting.undo_all()
    assert sorted(routes.asked[2:]) == [("restore", "p0-t0-0", "p0-t1-1"), ("restore", "p0-t0-1", "p0-t1-1")]


def test_faults_that_let_hellos_through_and_transports_without_detection_change_nothing() -> None:
    acting, _ = reaction()
    for kind in ("loss", "rate", "corruption", "delay"):
        acting.note(fault(kind), 0, False)
    assert acting.next_ns is None
    for name in ("rocev2", "tcp", "mrc"):
        acting, routes = reaction(name)
        acting.note(fault(), 0, False)
        acting.act(10_000 * MS)
        assert (acting.next_ns, routes.asked) == (None, [])


def test_rocev2_pins_its_path_only_where_switches_do_not_hash() -> None:
    found = {name: TRANSPORTS[name].channel_options for name in ("rocev2-16qp", "mrc")}
    assert found == {"rocev2-16qp": {"encapsulation": "plain", "qps": 16}, "mrc": dict(DEPLOYED)}
    assert replace(TRANSPORTS["rocev2"], routing="srv6").channel_options == {"encapsulation": "srv6"}


def test_a_carrier_that_is_gone_is_withdrawn_at_once() -> None:
    acting, routes = reaction()
    acting.note(fault("carrier"), 1000 * MS, False)
    acting.act(1000 * MS)
    assert len(routes.asked) == 1


def test_a_kernel_without_mptcp_is_what_the_machine_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrclab.hosts.collectives.tcp_channel.IPPROTO_MPTCP", 263)
    with pytest.raises(MachineError, match=r"no MPTCP: use one with CONFIG_MPTCP"):
        require_mptcp()
