"""A disk that is full before a run, or becomes so meanwhile: one line, and nothing is left up."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrclab.output import LEAST_ROOM_BYTES
from tests.support.command import Mrclab

pytestmark = [pytest.mark.root, pytest.mark.slow]
WORDS = ("run", "link-kill", "--topology", "tiny", "--target", "ebpf", "--trials", "2")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk that a run may begin on, with room for a part of its captures."""
    place = tmp_path / "small"
    place.mkdir()
    size = LEAST_ROOM_BYTES + 1_000_000
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_ends_a_run_with_one_line(mrclab: Mrclab, small: Path, machine: None) -> None:
    (small / "taken").write_bytes(bytes(2_000_000))
    refused = mrclab(*WORDS, "--out", str(small / "out"))
    assert refused.returncode == 3
    assert "MB left: make room: mrclab prune" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert not (small / "out").exists()
