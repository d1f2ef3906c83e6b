"""`mrclab run training --quick`: fewer repetitions, transports and steps, but the same faults."""

from __future__ import annotations

import pytest

from mrclab.cli import main
from mrclab.hosts.training.accelerator import LONGEST_START_S, START_TIMEOUT_S, patience_s, until_ready


def test_the_quick_training_has_two_transports_and_thirty_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "training", "--quick", "--target", "sim", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "steps 30" in said
    assert "1 repetitions" in said
    lines = [line.split()[1].rstrip(":") for line in said.splitlines() if line.startswith("transport ")]
    assert lines == ["mrc", "rocev2"]
    assert "plane-death on p2 from 2600 ms" in said


def test_what_is_set_goes_on_top(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "training", "--quick", "--set", "workload.steps=40", "--target", "sim", "--dry-run"]
    assert main(words) == 0
    assert "steps 40" in capsys.readouterr().out


def test_a_scenario_without_a_quick_version_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "link-kill", "--quick", "--dry-run"]) == 2
    assert "--quick is for training" in capsys.readouterr().err


def test_an_accelerator_may_take_longer_where_others_want_the_cpus() -> None:
    assert patience_s(0.2) == START_TIMEOUT_S
    assert patience_s(3) == 3 * START_TIMEOUT_S
    assert patience_s(1000) == LONGEST_START_S


def test_a_load_that_comes_during_the_wait_counts() -> None:
    """An accelerator gets more time to start if the machine's load rises during the wait."""
    now_s = 0.0

    def never(within_s: float) -> bool:
        nonlocal now_s
        now_s += within_s
        return False

    assert not until_ready(never, lambda: now_s, lambda: 50.0 if now_s < 20 else 90.0)
    assert now_s == 90.0


def test_an_accelerator_that_answers_is_waited_for_no_longer() -> None:
    asked: list[float] = []
    assert until_ready(lambda within_s: asked.append(within_s) or len(asked) == 3, lambda: 0.0, lambda: 1.0)
    assert len(asked) == 3
