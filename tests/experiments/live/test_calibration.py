"""Calibration slows a scenario with ranks down until the CPUs are fast enough for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrclab.experiments.live import calibration
from mrclab.experiments.spec.model import Scenario
from mrclab.experiments.spec.scenario import load_scenario
from mrclab.linux.errors import InputError


def rehearsed(monkeypatch: pytest.MonkeyPatch, shares: dict[float, tuple[float, bool]]) -> list[float]:
    """Fake all rehearsals. ``shares`` has a result for each factor `slower`. Return the rehearsed factors."""
    speeds: list[float] = []

    def rehearse(scenario: Scenario, out: Path) -> tuple[float, bool]:
        speeds.append(scenario.slower)
        return shares[min(shares, key=lambda slower: abs(slower - scenario.slower))]

    monkeypatch.setattr(calibration, "_rehearse", rehearse)
    return speeds


def test_what_a_machine_can_do_runs_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    speeds = rehearsed(monkeypatch, {1: (0.6, False)})
    scenario = load_scenario("fig20", target="ebpf")
    assert calibration.calibrated(scenario, Path(), said.append) is scenario
    assert speeds == [1]
    assert said == ["rehearsing, to find the rate"]


def test_a_fuller_cpu_slows_everything_down_until_it_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    speeds = rehearsed(monkeypatch, {1: (0.95, True), 1.6: (0.88, False), 2.2: (0.8, False)})
    found = calibration.calibrated(load_scenario("fig20", target="ebpf"), Path(), said.append)
    assert speeds == [1, pytest.approx(1.65), pytest.approx(2.3)]
    assert found.slower == pytest.approx(2.3)
    assert "2.3 times slower than written" in said[-1]


def test_sockets_that_overflow_slow_down_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = rehearsed(monkeypatch, {1: (0.5, True), 1.2: (0.5, False)})
    calibration.calibrated(load_scenario("fig20", target="ebpf"), Path(), lambda _: None)
    assert speeds == [1, pytest.approx(1.2)]


def test_links_that_cannot_be_as_slow_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsed(monkeypatch, {1: (0.95, True)})
    with pytest.raises(InputError, match=r"entropy-values: .* below 1 Mbit/s: --target sim"):
        calibration.calibrated(load_scenario("entropy-values", target="ebpf"), Path(), lambda _: None)


def test_transports_that_differ_in_their_loss_are_rehearsed_once() -> None:
    short = calibration.rehearsal(load_scenario("fig16", target="ebpf"))
    assert [transport.name for transport in short.transports] == ["mrc", "rocev2", "rocev2-16qp"]
    assert short.repetitions == 1
    assert not short.faults


def test_the_files_of_a_rehearsal_lie_in_the_directory_of_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    places: list[Path] = []
    monkeypatch.setattr(calibration, "run_scenario", lambda _, place, *rest, **named: places.append(place))
    calibration.calibrated(load_scenario("fig20", target="ebpf"), tmp_path, lambda _: None)
    assert [place.parent for place in places] == [tmp_path]
    assert list(tmp_path.iterdir()) == []
