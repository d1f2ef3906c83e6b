"""A short soak with real streams and faults, and a soak that fails because an agent was killed."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import jsonschema
import psutil
import pytest

from mrclab.experiments.measure.events import load_events
from mrclab.experiments.result.model import result_schema
from tests.support.command import Mrclab

pytestmark = [pytest.mark.root]

WORDS = ("soak", "--topology", "tiny", "--target", "ebpf", "--set", "faults.0.every=100 ms")


@pytest.mark.slow
def test_every_byte_is_delivered_once_while_everything_breaks(
    mrclab: Mrclab, tmp_path: Path, machine: None
) -> None:
    out = tmp_path / "out"
    words = ("--set", "faults.0.longest=1 s", "--duration", "6 s", "--seed", "7")
    said = mrclab.ok(*WORDS, *words, "--out", str(out))
    assert "random-faults" in said
    result = json.loads((out / "result.json").read_text())
    jsonschema.validate(result, result_schema())
    assert result["integrity"] == "ok"
    details = result["transports"]["mrc"]["details"][0]
    totals = details["totals"]
    assert totals["placed_bytes"] == totals["delivered_bytes"] == totals["bytes"] > 10_000_000
    assert totals["packets_lost"] > 0, "no fault hit a packet"
    assert all(stream["messages"] > 20 for stream in details["streams"])
    faults = json.loads((out / "mrc-0" / "faults.json").read_text())
    assert len(faults) > 10
    assert all(fault["t_after_ns"] < fault["restore_before_ns"] for fault in faults)
    assert any(load_events(out / "mrc-0" / "events" / f"h{n}.jsonl").of("PacketLost") for n in range(4))


@pytest.mark.slow
def test_a_soak_that_fails_says_so_with_its_seed_and_how_to_repeat_it(
    mrclab: Mrclab, tmp_path: Path, machine: None
) -> None:
    out = tmp_path / "out"
    soak = subprocess.Popen(
        mrclab.command(*WORDS, "--duration", "1 min", "--seed", "8", "--out", str(out)),
        env=mrclab.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    log, deadline = out / "mrc-0" / "events" / "h2.jsonl", time.monotonic() + 30
    while not (log.exists() and log.stat().st_size > 1000):
        assert soak.poll() is None
        assert time.monotonic() < deadline
        signal.sigtimedwait([], 0.1)
    os.kill(agents_of(soak.pid)[0], signal.SIGKILL)
    said, _ = soak.communicate(timeout=60)
    assert soak.returncode == 1
    assert "was ended by SIGKILL" in " ".join(said.split())
    result = json.loads((out / "result.json").read_text())
    assert "the agent on h0 (process" in result["integrity"]
    assert "was ended by SIGKILL" in result["integrity"]
    assert result["command"][:5] == ["mrclab", "run", "random-faults", "--target", "ebpf"]
    assert "workload.duration=1 min" in result["command"]
    jsonschema.validate(result, result_schema())


def agents_of(pid: int) -> list[int]:
    """Return the agents that a process or its children have started, in order."""
    below = psutil.Process(pid).children(recursive=True)
    return sorted(child.pid for child in below if "mrclab.hosts.agent" in child.cmdline())
