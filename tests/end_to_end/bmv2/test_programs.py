"""A program in C over BMv2: slow switches cost no path, and a cut costs one."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest

from mrclab.testbed.programs.nic import log_file
from tests.support.command import Up
from tests.support.paths import ROOT

HEADER = Path("/usr/include/infiniband/verbs.h")
pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or not HEADER.exists(),
    reason="needs a C compiler and libibverbs' header (apt install gcc libibverbs-dev)",
)
PORT, SIZE, MESSAGES = "18515", "65536", "200"
PATIENCE_S = 90


def _retired(up: Up) -> int:
    log = log_file(up.mrclab.names, "h0")
    return sum(json.loads(line).get("name") == "mrc:path:ev_retired" for line in log.read_text().splitlines())


def _start(up: Up, host: str, *words: object) -> subprocess.Popen[str]:
    argv = up.mrclab.command("exec", host, "--", *map(str, words))
    return subprocess.Popen(
        argv, env=up.mrclab.environment, stdin=PIPE, stdout=PIPE, stderr=STDOUT, text=True, cwd="/"
    )


def test_paths_are_retired_because_of_a_cut_and_not_because_switches_are_slow(
    tiny: Up, tmp_path: Path
) -> None:
    pair = tmp_path / "pair"
    source = ROOT / "tests" / "support" / "programs" / "pair.c"
    subprocess.run(["cc", "-O2", "-o", pair, source, "-libverbs"], check=True)
    messages = PORT, SIZE, MESSAGES
    with (
        _start(tiny, "h2", pair, "server", *messages, "events") as server,
        _start(tiny, "h0", pair, "client", *messages, "h2", "pause") as client,
    ):
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == "connected\n"
            assert client.stdout.readline() == "half\n"
            assert _retired(tiny) == 0
            tiny.mrclab.ok("fault", "blackhole", "p0-t0-0:p0-t1-0")
            assert "ok" in client.communicate("\n", timeout=PATIENCE_S)[0]
            assert "ok" in server.communicate(timeout=PATIENCE_S)[0]
        finally:
            client.kill()
            server.kill()
            tiny.mrclab.ok("restore", "--all")
    assert (client.returncode, server.returncode) == (0, 0)
    deadline = time.monotonic() + PATIENCE_S  # another process writes the log
    while not _retired(tiny):
        assert time.monotonic() < deadline
        time.sleep(0.05)
