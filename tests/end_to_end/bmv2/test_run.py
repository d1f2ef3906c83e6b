"""Experiments on BMv2, started as a user starts them."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mrclab.experiments.result.model import result_schema
from mrclab.testbed.names import RUN_VARIABLE
from tests.support.command import Mrclab
from tests.support.goodput import goodputs_mbps

PATIENCE_S = 60
RUN_S = 400
"""Time limit of a run. On a busy machine each trial may wait 5 s until all paths are back."""


def result_in(out: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    jsonschema.validate(result, result_schema())
    assert result["target"] == "bmv2"
    assert result["integrity"] == "ok"
    return result


def test_link_kill_recovers_every_byte(mrclab: Mrclab, tmp_path: Path, machine: None) -> None:
    out = tmp_path / "out"
    mrclab.ok(
        "run", "link-kill", "--topology", "tiny", "--target", "bmv2", "--trials", "4", "--out", str(out)
    )
    result = result_in(out)
    assert 4 <= len(result["trials"]) <= 8  # a busy machine repeats trials
    assert sum(trial["lost_packets"] for trial in result["trials"]) > 0
    assert result["summary"]["recovered_us"]["n"] > 0
    found, captured = goodputs_mbps(out, result, "h2")
    assert found == pytest.approx(captured, rel=0.01)


def test_a_scenario_may_kill_switches(mrclab: Mrclab, tmp_path: Path, machine: None) -> None:
    out = tmp_path / "out"
    mrclab.ok(
        *("run", "link-kill", "--topology", "tiny", "--target", "bmv2", "--trials", "2", "--out", str(out)),
        *("--set", "faults.0.kind=switch-death", "--set", "faults.0.where=p1-t1-0"),
    )
    trials = result_in(out)["trials"]
    made = [(t["fault"]["kind"], t["fault"]["where"]) for t in trials]
    assert 2 <= len(made) <= 4
    assert set(made) == {("switch-death", "p1-t1-0")}
    assert all(t["broken_paths"] == 1 for t in trials)
    assert any(t["lost_packets"] for t in trials)


def test_a_death_that_nobody_asked_for_is_in_the_result(
    mrclab: Mrclab, tmp_path: Path, machine: None
) -> None:
    out = tmp_path / "out"
    command = mrclab.command(
        "run", "link-kill", "--topology", "tiny", "--target", "bmv2", "--trials", "12", "--out", str(out)
    )
    process = subprocess.Popen(command, env=mrclab.environment, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + PATIENCE_S
    while not any("ev_retired" in log.read_text() for log in out.glob("mrc-0/events/*.jsonl")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        signal.sigtimedwait([], 0.05)
    victim = bmv2_process(mrclab, "p0-t1-1")
    os.kill(victim, signal.SIGKILL)
    said, _ = process.communicate(timeout=RUN_S)
    assert process.returncode == 0, said
    result = result_in(out)
    # On a busy machine the trial may have been set aside and repeated.
    trials = [*result["trials"], *result.get("set_aside", ())]
    deaths = [t for t in trials if t["fault"]["kind"] == "switch-death"]
    assert [t["fault"]["where"] for t in deaths] == ["p0-t1-1"]
    assert len(result["trials"]) >= 12
    assert not result["valid"]
    assert any(
        "switch failure: p0-t1-1 was ended by SIGKILL, by no fault" in r
        for r in result["validity"]["reasons"]
    )


def bmv2_process(mrclab: Mrclab, switch: str) -> int:
    """Return the pid of a switch of this testbed, found by its environment and command line."""
    run = f"{RUN_VARIABLE}={mrclab.names.prefix}.".encode()
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            if (
                f"@{switch}-eth".encode() in (proc / "cmdline").read_bytes()
                and run in (proc / "environ").read_bytes()
            ):
                return int(proc.name)
        except OSError:
            continue
    raise AssertionError(f"no process of {switch}")
