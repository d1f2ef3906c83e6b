"""Results as data frames: their content, and the notebooks that use them, for a run in virtual time."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

from mrclab.linux.errors import InputError
from mrclab.results import EVENT_COLUMNS, PACKET_COLUMNS, SERIES_COLUMNS, TRIAL_COLUMNS, load
from tests.support.paths import ROOT

NOTEBOOKS = ROOT / "docs/notebooks"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a run that kept its captures."""
    out = tmp_path_factory.mktemp("run") / "run"
    words = ["link-kill", "--target", "sim", "--topology", "tiny", "--trials", "3", "--seed", "3"]
    more = ["--set", "measure.capture=true", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "mrclab", "run", *words, *more], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.slow
def test_a_result_without_its_other_files_has_frames_and_the_rest_are_empty(
    run: Path, tmp_path: Path
) -> None:
    shutil.copy(run / "result.json", tmp_path)
    found = load(tmp_path)
    assert set(TRIAL_COLUMNS) <= set(found.trials)
    assert len(found.trials) == len(found.result["trials"])
    assert set(found.samples["transport"]) == set(found.result["transports"])
    assert tuple(found.series) == SERIES_COLUMNS
    assert found.events.empty
    assert tuple(found.events) == EVENT_COLUMNS
    assert found.packets.empty
    assert tuple(found.packets) == PACKET_COLUMNS


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no result"):
        load(tmp_path)
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(InputError, match=r"result\.json"):
        load(tmp_path)


@pytest.mark.slow
def test_frames_agree_with_the_result_and_with_one_another(run: Path) -> None:
    found = load(run)
    trial = found.trials.iloc[0]
    assert trial["recovered_us"] == found.result["trials"][0]["recovered_us"]
    assert found.series["bytes"].sum() == sum(
        sum(part["bytes"]) for part in found.result["transports"]["mrc"]["series"]
    )
    sent = found.packets[found.packets["outgoing"] & found.packets["is_data"]]
    assert sent["rtx"].sum() >= found.trials["retransmitted_packets"].sum() > 0
    retired = found.events[found.events["name"] == "EvRetired"]
    (known,) = found.result["transports"]["mrc"]["path_events"]
    assert sorted(retired["ev"]) == sorted(row[-1] for row in known["retired"])


def execute(notebook: Path) -> dict[str, Any]:
    """Run the code of a notebook, cell by cell, and return its variables."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    return names


@pytest.mark.slow
def test_the_notebook_of_a_recovery_draws_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MRCLAB_RUN", str(run))
    plt.close("all")
    names = execute(NOTEBOOKS / "recovery.ipynb")
    assert len(plt.get_fignums()) == 2
    assert names["sent"]["lost"].any()
    round_trip_us = 200  # packets on their way when the fault began were also lost
    assert names["sent"].loc[names["sent"]["lost"], "t_us"].min() >= -round_trip_us
    plt.close("all")


@pytest.mark.slow
def test_the_notebook_of_two_runs_finds_no_difference_between_equal_ones(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MRCLAB_A", str(run))
    monkeypatch.setenv("MRCLAB_B", str(run))
    plt.close("all")
    names = execute(NOTEBOOKS / "compare.ipynb")
    found = {row["b over a"] for row in names["rows"]}  # the value is None if a's median is 0
    assert 1.0 in found
    assert found <= {1.0, None}
    assert len(plt.get_fignums()) == 1
    plt.close("all")
