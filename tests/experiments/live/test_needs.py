"""A run checks the needs of all its transports before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrclab.experiments.live import needs
from mrclab.experiments.spec.scenario import load_scenario
from mrclab.linux.errors import MachineError
from mrclab.testbed.frr import daemons


def test_a_comparison_is_refused_before_it_starts_where_one_transport_cannot_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the sixth of seven transports needs FRRouting, which is missing."""

    def absent() -> Path:
        raise MachineError("FRRouting is not installed", "install the package frr")

    monkeypatch.setattr(daemons, "find_daemons", absent)
    monkeypatch.setattr("mrclab.switches.target.require_target", lambda choice: choice)
    with pytest.raises(MachineError, match="frr-bfd cannot run here: FRRouting is not installed"):
        needs.require_all(load_scenario("headline"))


def test_switches_that_cannot_run_are_named_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(MachineError, match="simple_switch_grpc is not on PATH: install BMv2"):
        needs.require_all(load_scenario("link-kill", target="bmv2"))
