"""A soak, short: real streams, real faults, and a verdict that can also be another."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from experiments.measure.events import load_events
from experiments.run.soak import soak_schema
from tests.support.command import Mrclab
from tests.support.json_schema import violations

pytestmark = [pytest.mark.root]

WORDS = ("soak", "--topology", "tiny", "--target", "ebpf", "--set", "faults.every=100 ms")


def test_every_byte_is_delivered_once_while_everything_breaks(
    mrclab: Mrclab, tmp_path: Path, machine: None
) -> None:
    out = tmp_path / "out"
    words = ("--set", "faults.longest=1 s", "--duration", "6 s", "--seed", "7")
    said = mrclab.ok(*WORDS, *words, "--out", str(out))
    assert "Every byte was delivered exactly once." in said
    result = json.loads((out / "result.json").read_text())
    assert not list(violations(result, soak_schema()))
    totals = result["totals"]
    assert totals["placed_bytes"] == totals["delivered_bytes"] == totals["bytes"] > 10_000_000
    assert totals["packets_lost"] > 0, "no fault hit a packet"
    assert all(stream["messages"] > 20 for stream in result["streams"])
    faults = [json.loads(line) for line in (out / "faults.jsonl").read_text().splitlines()]
    assert len(faults) == sum(result["faults"].values()) > 10
    assert all(fault["t_broken_ns"] < fault["t_mended_ns"] for fault in faults)
    assert any(load_events(out / f"h{n}.jsonl").of("PacketLost") for n in range(4))


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
    log, deadline = out / "h2.jsonl", time.monotonic() + 30
    while not (log.exists() and log.stat().st_size > 1000):
        assert soak.poll() is None
        assert time.monotonic() < deadline
        signal.sigtimedwait([], 0.1)
    os.kill(agents_of(soak.pid)[0], signal.SIGKILL)
    said, _ = soak.communicate(timeout=60)
    assert soak.returncode == 1
    assert "FAILED: the agent on h0 ended with code -9" in said
    assert "seed 8; the same again: mrclab soak random-faults --topology tiny" in said
    result = json.loads((out / "result.json").read_text())
    assert result["integrity"] == "the agent on h0 ended with code -9"
    assert not list(violations(result, soak_schema()))


def agents_of(pid: int) -> list[int]:
    """The agents that a process has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(c) for c in children if b"hosts.agent" in Path(f"/proc/{c}/cmdline").read_bytes()]
