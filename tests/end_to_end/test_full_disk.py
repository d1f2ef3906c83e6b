"""If the disk is full before or during a run, the run ends with a one-line error and leaves no testbed up."""

import errno
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrclab.output import LEAST_ROOM_BYTES
from tests.support.command import Mrclab

pytestmark = [pytest.mark.root, pytest.mark.slow]
WORDS = ("run", "link-kill", "--topology", "tiny", "--target", "ebpf", "--trials", "2")
LEFT_BYTES = 1_000_000
"""The free bytes on the almost full disk. The captures of 100 ms need more."""
PATIENCE_S = 60


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Mount a small disk. A run can begin on it, but it has room for only a part of the captures."""
    place = tmp_path / "small"
    place.mkdir()
    size = LEAST_ROOM_BYTES + 4_000_000
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_ends_a_run_with_one_line(mrclab: Mrclab, small: Path, machine: None) -> None:
    (small / "taken").write_bytes(bytes(6_000_000))
    refused = mrclab(*WORDS, "--out", str(small / "out"))
    assert refused.returncode == 3
    assert "MB left: make room: mrclab prune" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert not (small / "out").exists()


def test_a_disk_that_others_fill_meanwhile_ends_a_run_with_one_line(
    mrclab: Mrclab, small: Path, machine: None
) -> None:
    """The run has enough room to start. Then another file takes the room for the captures."""
    out, pipe = small / "out", subprocess.PIPE
    with subprocess.Popen(
        mrclab.command(*WORDS, "--out", str(out)), env=mrclab.environment, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not (out / "run.json").exists():
                assert process.poll() is None
                assert time.monotonic() < deadline
                signal.sigtimedwait([], 0.05)
            with (small / "of others").open("wb") as others:
                others.write(bytes(shutil.disk_usage(small).free - LEFT_BYTES))
            said, wrong = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 1
    assert wrong.count("\n") == 1
    assert "disk is full" in wrong or os.strerror(errno.ENOSPC) in wrong
    assert "Traceback" not in said
    assert (out / "mrc-0" / "captures").is_dir(), "it ended before its captures began"
    for file in out.rglob("*.json"):  # each file is written completely
        json.loads(file.read_text())
    assert not (out / "result.json").exists(), "nothing was measured"
