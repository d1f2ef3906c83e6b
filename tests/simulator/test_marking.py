"""Simulated switches mark packets by DCQCN's own curve. Ports to NICs mark only if a scenario asks for it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from benchmarks.kit.bare_links import packet
from mrclab.controller.queues import QueuePolicy
from mrclab.experiments.spec.scenario import parse_scenario
from mrclab.experiments.spec.transports import TransportEntry
from mrclab.linux.errors import InputError
from mrclab.simulator.clock import NEVER_PS, PS_PER_NS, Clock
from mrclab.simulator.network import Marking, depths_of
from mrclab.simulator.port import Depths, Port
from mrclab.topologies import LinkProfile

PROFILE = LinkProfile(rate_bps=400_000_000_000, delay_ns=500, mtu_bytes=4178)
POLICY = QueuePolicy.of_rtt(8000)
DRAWS = 8000


def share(depths: Depths, wait_ns: int) -> float:
    """Return the share of marked frames if frames wait this long, on a link that sends a byte in 1 ns."""
    rng, clock, marked = random.Random(3), Clock(), 0
    for _ in range(DRAWS):
        port = Port(clock, "line", 1, 8 * 10**9, 0, depths, rng)
        port.put(packet(wait_ns))
        behind = packet(markable=True)
        port.put(behind)
        marked += behind.marked
    return marked / DRAWS


def dcqcn(last_hop: bool = False) -> Depths:
    return depths_of(PROFILE, POLICY, last_hop=last_hop, marking=Marking("dcqcn", last_hop))


@pytest.mark.parametrize(
    ("wait_ns", "wanted"), [(900, 0.0), (20_500, 0.005), (39_900, 0.01), (40_100, 1.0), (60_000, 1.0)]
)
def test_dcqcns_marks_rise_to_one_percent_and_are_certain_beyond(wait_ns: int, wanted: float) -> None:
    """The tolerance is five standard errors. The queue never drops or trims, as on lossless links."""
    error = 5 * (wanted * (1 - wanted) / DRAWS) ** 0.5
    roomy = replace(dcqcn(), drop_ps=NEVER_PS, trim_from_ps=NEVER_PS)
    assert share(roomy, wait_ns) == pytest.approx(wanted, abs=error)


def test_only_marks_differ_from_a_live_switch() -> None:
    usual, other = depths_of(PROFILE, POLICY, last_hop=False), dcqcn()
    assert (other.drop_ps, other.trim_from_ps, other.cut_dscp) == (
        usual.drop_ps,
        usual.trim_from_ps,
        usual.cut_dscp,
    )
    assert other.mark_from_ps == 1000 * PS_PER_NS


@pytest.mark.parametrize("marks", ["uec", "dcqcn"])
def test_a_last_hop_marks_only_on_request(marks: str) -> None:
    def last(on: bool) -> Depths:
        return depths_of(PROFILE, POLICY, last_hop=True, marking=Marking(marks, on))  # type: ignore[arg-type]

    assert last(on=False) == depths_of(PROFILE, POLICY, last_hop=True)
    assert last(on=False).mark_from_ps == NEVER_PS
    before = depths_of(PROFILE, POLICY, last_hop=False, marking=Marking(marks))  # type: ignore[arg-type]
    asked = last(on=True)
    assert (asked.mark_from_ps, asked.mark_span_ps) == (before.mark_from_ps, before.mark_span_ps)
    assert asked.cut_dscp == last(on=False).cut_dscp


def test_a_scenario_may_ask_for_them_in_virtual_time_alone() -> None:
    asked = {"use": "rocev2-pfc", "marks": "dcqcn", "last_hop_marks": True}
    made = TransportEntry.model_validate(asked).transport("x")
    assert (made.marks, made.last_hop_marks) == ("dcqcn", True)
    text = """\
name: a
topology: tiny
target: {target}
transports: {{mrc: {{last_hop_marks: true}}}}
workload: {{kind: stream}}
"""
    simulated = parse_scenario(text.format(target="sim"), "file.yaml")
    simulated.check_against(simulated.fabric())
    live = parse_scenario(text.format(target="ebpf"), "file.yaml")
    with pytest.raises(InputError, match="only --target sim has other marks than UEC's"):
        live.check_against(live.fabric())
