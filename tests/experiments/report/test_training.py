"""The output about a training in the terminal, on the page and in pictures."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from mrclab.experiments.measure import life
from mrclab.experiments.measure.life import Toll, goodput, useful_share
from mrclab.experiments.report.table import render_result
from mrclab.experiments.report.training import rows_of, sentence
from mrclab.experiments.report.training_pictures import draw_training
from mrclab.experiments.report.write import write_all
from mrclab.experiments.result.file import save_result
from mrclab.experiments.result.statistics import summarise
from mrclab.scale.parts import load_parts
from tests.experiments.report.test_table import said

STALL_US = 3e6


def trained(stall_us: float, crashes: int, sha256: str = "aa", failed: bool = False) -> dict[str, Any]:
    """Return the data of a training of four steps. The third step stalled."""
    steps = 3 if failed else 4
    end_us = [1e5, 2e5, 3e5 + stall_us, 4e5 + stall_us][:steps]
    losses = [3.9, 3.5, 3.2, 3.0][:steps]
    crash = {"step": 2, "at_us": 3e5, "lost_steps": 3}
    return {
        "steps": steps,
        "wanted_steps": 4,
        "losses": losses,
        "start_us": [0.0, 1e5, 2e5, 3e5 + stall_us][:steps],
        "computed_us": [5e4, 1.5e5, 2.5e5, 3.5e5 + stall_us][:steps],
        "end_us": end_us,
        "parameters_sha256": sha256,
        "alone_sha256": "aa",
        "parameters_differ_at": None,
        "under_watchdog": {"end_us": end_us, "losses": losses, "crashes": [crash] * crashes},
    }


@pytest.fixture
def result(spray: dict[str, Any]) -> dict[str, Any]:
    """Return a result of two trainings. The training with mrc did not stall, the other training stalled."""
    made = deepcopy(spray)
    base = made["transports"].pop("mrc")
    for name, training in {
        "mrc": trained(2000, 0),
        "control": trained(0, 0),
        "frr": trained(STALL_US, 1, failed=True),
    }.items():
        found = deepcopy(base)
        stalled = [0.0, 0.0, max(training["end_us"]) - 4e5, 0.0]
        metrics = {
            "step_us": [1e5, 1e5, 1e5 + stalled[2], 1e5],
            "stalled_us": stalled,
            "stalled_share": [stalled[2] / (4e5 + stalled[2])],
            "crashes": [float(len(training["under_watchdog"]["crashes"]))],
            "lost_steps": [3.0 * len(training["under_watchdog"]["crashes"])],
        }
        found["summary"] |= {key: summarise(values).to_dict() for key, values in metrics.items()}
        found["details"] = [{"repetition": 0, "training": training}]
        made["transports"][name] = found
    made["parameters"]["workload"] = {
        "kind": "transformer",
        "collective_timeout_ns": 2 * 10**9,
        "ranks": 4,
        "batch": 8,
        "context": 64,
    }
    return made


@pytest.mark.slow
def test_a_sentence_has_what_each_transport_did(result: dict[str, Any]) -> None:
    text = sentence(result)
    mrc, frr, control = text.split("; ")
    assert mrc.startswith("Under the same faults, mrc: 0.")
    assert mrc.endswith("parameters bit for bit those of one process")
    assert "1 of 1 jobs failed" in frr
    assert frr.endswith("a collective timeout of 2 s would have ended the job once and cost 3 steps")
    assert control == "without faults (control): 0 % of the time stalled, longest stall 0.00 \N{MICRO SIGN}s."


@pytest.mark.slow
def test_a_row_says_whether_the_bits_are_the_same(result: dict[str, Any]) -> None:
    def bits(name: str) -> bool | None:
        return next(row.same_bits for row in rows_of(result) if row.transport == name)

    training = result["transports"]["mrc"]["details"][0]["training"]
    assert bits("mrc") is True
    training["parameters_differ_at"] = 2
    assert bits("mrc") is False
    training |= {"parameters_differ_at": None, "alone_sha256": None}
    assert bits("mrc") is None
    training |= {"alone_sha256": "bb"}
    assert bits("mrc") is False


@pytest.mark.slow
def test_terminal_and_page_have_a_row_for_each_transport(result: dict[str, Any], tmp_path: Path) -> None:
    text = said(render_result(result))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    rows = [line.split() for line in text.splitlines() if line.strip().startswith("frr")]
    speed, watched = next(row for row in rows if "%" in row), next(row for row in rows if row[-1] == "same")
    assert speed[1:4] == ["0.909", "1,862", "12.1"]
    assert watched[1:3] == ["1", "3"]
    save_result(tmp_path, result)
    page, _ = write_all(tmp_path)
    html = page.read_text(encoding="utf-8")
    assert "<h2>The training</h2>" in html
    assert "parameters bit for bit those of one process" in html
    assert "0 of 1" in html
    for name in ("training-loss.png", "training-steps.png"):
        assert (tmp_path / name).stat().st_size > 0


@pytest.mark.slow
def test_a_result_without_training_says_nothing_of_it(spray: dict[str, Any], tmp_path: Path) -> None:
    assert sentence(spray) == ""
    save_result(tmp_path, spray)
    page, _ = write_all(tmp_path)
    assert "The training" not in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_row_has_the_toll_of_a_fault(result: dict[str, Any]) -> None:
    """A stall that is longer than the collective timeout counts as a crash, not as a stall."""
    rows = {row.transport: row for row in rows_of(result)}
    made = len([f for f in result["transports"]["mrc"]["faults"] if f["repetition"] == 0])
    assert rows["mrc"].toll == Toll(pytest.approx(0.002 / made), 0.0)
    assert rows["frr"].toll == Toll(0.0, pytest.approx(1 / made))


def test_goodput_over_a_life_is_what_stalls_and_crashes_leave() -> None:
    assert goodput(Toll(0.0, 1.0), 3.1) == pytest.approx(useful_share(1 / 3.1, 0.5, 1 / 6))
    assert goodput(Toll(36.0, 0.0), 0.1) == pytest.approx(0.9)
    assert goodput(Toll(720.0, 0.0), 0.1) == 0.0


@pytest.mark.slow
def test_the_last_panel_is_there_only_if_a_job_would_have_ended(result: dict[str, Any]) -> None:
    styles = {name: {"color": "#000000"} for name in result["transports"]}
    assert len(draw_training(result, styles)["training-loss"].axes) == 3
    for found in result["transports"].values():
        found["details"][0]["training"]["under_watchdog"]["crashes"] = []
    assert len(draw_training(result, styles)["training-loss"].axes) == 2


def test_a_life_has_the_checkpoints_and_the_restart_of_the_table_of_parts() -> None:
    job = load_parts().job
    assert job.checkpoint_ns / 3600e9 == life.CHECKPOINT_HOURS
    assert job.restart_ns / 3600e9 == life.RESTART_HOURS
