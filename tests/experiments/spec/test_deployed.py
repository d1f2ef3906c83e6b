"""Shipped scenarios measure MRC with the options of deployed NICs, or give a reason for other options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from mrclab.experiments.spec.model import SIMULATED, Scenario
from mrclab.experiments.spec.scenario import load_scenario
from mrclab.experiments.spec.shipped import SCENARIOS
from mrclab.hosts.transports import TRANSPORTS

TIMERS = {
    "ack_timeout_exponent",
    "endpoint_timeout_ns",
    "initial_rtt_ns",
    "max_reorder_ns",
    "min_reorder_ns",
    "port_bps",
    "reorder_memory_ns",
    "reorder_quiet_ns",
    "tail_probe_max_ns",
}
"""Options that follow from a fabric's links."""

WHY: Mapping[str, Mapping[str, str]] = {
    "entropy-values": {"max_active_evs": "One flow over 4 to 256 EVs"},
    "ev-modes": {"sack_threshold_bytes": "as in link-kill"},
    "fig04": {"reverse_evs": "the probes of a reverse set would take the CPUs"},
    "fig08": {"reverse_evs": "the probes of a reverse set would take the CPUs"},
    "fig12": dict.fromkeys(
        ("max_active_evs", "spare_evs_per_plane"), "two in each of eight planes, one spare path taking over"
    ),
    "fig19c": {"skip_cap": "not judged: what SKIP alone costs"},
    "link-kill": {
        "sack_threshold_bytes": "a SACK for every four small packets",
        "sack_at_gap": "for every packet while one before it is missing",
        "reorder_rtt_fraction": "nor for a quarter of the round trip",
        "reorder_queueing_factor": "nor for twice the queueing delay",
        "max_active_evs": "here all of 256 paths are in use, and none is a backup",
        "spare_evs_per_plane": "here all of 256 paths are in use, and none is a backup",
    },
    "queue-pairs": {
        "reverse_evs": "the probes of a reverse set would take the CPUs",
        "ev_sets": "not judged: what one rotation for all queue pairs to a peer gains",
    },
}
"""For each scenario, the options that it sets differently, and the words in it that give the reason."""


def variants(name: str) -> Iterator[Scenario]:
    """Yield a scenario on each target, and on each topology for which its file has a separate section."""
    document = yaml.safe_load(SCENARIOS.text(name)[0])
    for target in ("ebpf", "bmv2", SIMULATED):
        part = document.get("targets", {}).get(target, {})
        for topology in (None, *document.get("topologies", {}), *part.get("topologies", {})):
            yield load_scenario(name, target=target, topology=topology)


def unlike_deployed(scenario: Scenario) -> dict[str, Any]:
    """Return those MRC options of a scenario that differ from the options of deployed NICs."""
    found: dict[str, Any] = {}
    for transport in scenario.transports:
        if transport.kind != "mrc":
            continue
        base: Mapping[str, Any] = TRANSPORTS["oblivious" if transport.name == "oblivious" else "mrc"].options
        ours = {key: value for key, value in transport.options.items() if key not in TIMERS | {"qps"}}
        found |= {key: ours.get(key) for key in base.keys() | ours.keys() if ours.get(key) != base.get(key)}
    return found


@pytest.mark.parametrize("name", SCENARIOS.names())
def test_a_scenario_measures_mrc_as_it_is_deployed_or_says_why_not(name: str) -> None:
    found = {option for scenario in variants(name) for option in unlike_deployed(scenario)}
    reasons = WHY.get(name, {})
    assert found == set(reasons)
    text = SCENARIOS.text(name)[0]
    for words in reasons.values():
        assert words in text


@pytest.mark.parametrize(
    "option",
    [
        ("congestion", "fixed"),
        ("timestamps", False),
        ("transport_ack", False),
        ("reverse_evs", "mirror"),
        ("max_active_evs", 16),
        ("spare_evs_per_plane", 0),
        ("nscc", {"quick_adapt": False}),
    ],
    ids=lambda option: option[0],
)
def test_what_is_not_as_deployed_is_seen(option: tuple[str, Any]) -> None:
    key, value = option
    setting = f"transports.mrc.options.{key}={yaml.safe_dump(value, default_flow_style=True).splitlines()[0]}"
    assert unlike_deployed(load_scenario("headline", settings=[setting])) == {key: value}
