"""A killed run: its finished parts can be read, and another attempt continues after these parts."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.command import Mrclab

pytestmark = [pytest.mark.root, pytest.mark.slow]

PATIENCE_S = 90
SCENARIO = """\
name: three
topology: tiny
transports: {mrc: {}, single: {use: single-plane}}
workload: {kind: stream, message_bytes: 8 KiB, rate: 5 Mbit/s, duration: 300 ms}
warmup: 100 ms
repetitions: 2
rehearse: no
"""


def test_a_killed_run_is_reported_and_gone_on_with(mrclab: Mrclab, tmp_path: Path) -> None:
    (tmp_path / "three.yaml").write_text(SCENARIO)
    out = tmp_path / "out"
    words = ("run", "three.yaml", "--target", "ebpf", "--out", "out")
    with open(tmp_path / "said", "wb") as said:
        process = subprocess.Popen(
            mrclab.command(*words), env=mrclab.environment, cwd=tmp_path, stdout=said, stderr=said
        )
    kept = out / "mrc-1" / "repetition.json"
    deadline = time.monotonic() + PATIENCE_S
    while not kept.exists():
        assert process.poll() is None, (tmp_path / "said").read_text()
        assert time.monotonic() < deadline
        signal.sigtimedwait([], 0.02)
    process.kill()
    process.wait()
    first = kept.read_bytes()

    mrclab.ok("report", str(out))
    partial = json.loads((out / "result.json").read_text())
    assert partial["unfinished"] is not None
    assert not partial["valid"]
    assert "mrc" in partial["transports"]
    assert "not finished" in (out / "report.html").read_text()

    said_again = mrclab.ok("run", "--resume", str(out))
    assert "mrc: 2 of 2 repetitions kept" in said_again
    assert "4 of 4 repetitions" in said_again, "progress is told in lines where nothing can be drawn"
    result = json.loads((out / "result.json").read_text())
    assert result["unfinished"] is None
    assert {name: len(t["samples"]) for name, t in result["transports"].items()} == {"mrc": 2, "single": 2}
    assert kept.read_bytes() == first
    assert result["command"][:3] == ["mrclab", "run", str(tmp_path / "three.yaml")]

    refused = mrclab("run", "--resume", str(out))
    assert refused.returncode == 2
    assert "is finished" in refused.stderr
