"""Scenarios that run ordinary RDMA programs: data during a cut, failures, and complete cleanup."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.command import Mrclab
from tests.support.paths import ROOT

HEADER = Path("/usr/include/infiniband/verbs.h")
pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.usefixtures("machine"),
    pytest.mark.skipif(
        shutil.which("cc") is None or not HEADER.exists(),
        reason="needs a C compiler and libibverbs' header (apt install gcc libibverbs-dev)",
    ),
]
COUNT, SIZE = 6000, 16384
PATIENCE_S = 900


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the test program in C and return its path. Its server checks every byte."""
    file = tmp_path_factory.mktemp("pair") / "pair"
    source = ROOT / "tests" / "support" / "programs" / "pair.c"
    subprocess.run(["cc", "-O2", "-o", file, source, "-libverbs"], check=True)
    return file


def scenario(tmp_path: Path, *programs: dict[str, Any], **more: Any) -> str:
    """Write a scenario with these programs; return its path."""
    file = tmp_path / "own.yaml"
    workload = {"kind": "program", "programs": list(programs)}
    base = {"name": "own", "topology": "tiny", "target": "ebpf", "transports": ["mrc"], "repetitions": 1}
    file.write_text(yaml.safe_dump({**base, "warmup": "100 ms", "workload": workload, **more}))
    return str(file)


def run(mrclab: Mrclab, file: str, out: Path) -> subprocess.CompletedProcess[str]:
    """Run a scenario."""
    return subprocess.run(
        mrclab.command("run", file, "--out", str(out)),
        env=mrclab.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_a_program_keeps_every_byte_while_a_link_is_cut(mrclab: Mrclab, tmp_path: Path, pair: Path) -> None:
    words = f"18515 {SIZE} {COUNT}"
    metric = {"messages": {"pattern": "ok ([0-9]+) messages", "unit": "messages"}}
    file = scenario(
        tmp_path,
        {"host": "h2", "run": f"{pair} server {words}", "listens": 18515, "metrics": metric},
        {"host": "h0", "run": f"{pair} client {words} h2"},
        faults=[{"kind": "blackhole", "where": "p0-t0-0:p0-t1-0", "at": "0 ms", "duration": "300 ms"}],
    )
    out = tmp_path / "out"
    done = run(mrclab, file, out)
    assert done.returncode == 0, done.stderr + done.stdout
    result = json.loads((out / "result.json").read_text())
    (sample,) = result["transports"]["mrc"]["samples"]
    assert (result["integrity"], sample["failure"]) == ("ok", None)
    assert sample["metrics"]["messages"] == [COUNT]
    (details,) = result["transports"]["mrc"]["details"]
    assert [program["exit_code"] for program in details["programs"]] == [0, 0]
    requested = {row["src"]: row for row in details["requests"]}
    probes = requested["h0"]["completed"] - COUNT  # probes of 8 bytes, while the client waits
    assert requested["h0"]["bytes"] == COUNT * SIZE + 8 * probes
    (trial,) = result["trials"]
    assert trial["felt"] is False or trial["recovered_us"] is not None
    assert "ok 6000 messages" in (out / details["programs"][0]["output"]).read_text()


def test_a_program_that_fails_is_named_and_what_it_started_is_ended(mrclab: Mrclab, tmp_path: Path) -> None:
    """mrclab must end the failing program's child, which is in another session, and the endless program."""
    script = "setsid sleep 1000 & echo no such thing; exit 3"
    file = scenario(
        tmp_path, {"host": "h2", "run": "sleep 1000"}, {"host": "h0", "run": ["sh", "-c", script]}
    )
    done = run(mrclab, file, tmp_path / "out")
    assert done.returncode == 1, done.stderr + done.stdout
    said = " ".join(done.stdout.split())
    assert "A PROGRAM FAILED: h0 sh exit code 3 (no such thing), in 1 of 1 repetitions." in said
    assert said.index("A PROGRAM FAILED") < said.index("alid:")


def test_nothing_is_left_of_a_run_that_is_ended(mrclab: Mrclab, tmp_path: Path) -> None:
    """The programs have begun, but send nothing. SIGTERM arrives while the run waits for their traffic."""
    started = tmp_path / "started"
    file = scenario(
        tmp_path,
        {"host": "h2", "run": ["sh", "-c", f"setsid sleep 1000 & touch {started}; exec sleep 1000"]},
        {"host": "h0", "run": "sleep 1000"},
    )
    argv = mrclab.command("run", file, "--out", str(tmp_path / "out"))
    with subprocess.Popen(
        argv, env=mrclab.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            while not started.exists():
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) != 0
        finally:
            process.kill()
