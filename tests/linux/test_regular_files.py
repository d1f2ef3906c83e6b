"""Every kind of file of another user is read, or refused at once with an error of one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mrclab.experiments.result.file import load_result
from mrclab.linux.errors import InputError
from mrclab.linux.regular_files import read_regular


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 10)
    assert read_regular(tmp_path / "a", 10) == b"x" * 10
    with pytest.raises(InputError, match="larger than"):
        read_regular(tmp_path / "a", 9)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "b", 9)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(6 << 30)


KINDS = {
    "pipe": (os.mkfifo, "no regular file"),
    "device": (lambda path: os.symlink("/dev/zero", path), "is a link"),
    "link-outside": (lambda path: os.symlink("/etc/passwd", path), "is a link"),
    "huge": (sparse, "larger than"),
    "folder": (os.mkdir, "no regular file|not a result"),
    "deep": (lambda path: path.write_text("[" * 200_000), "nested too deeply"),
    "text": (lambda path: path.write_bytes(b"\xff\xfe"), "not a result"),
}


@pytest.mark.timeout(30)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
@pytest.mark.parametrize("kind", KINDS)
def test_a_strangers_result_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    make, reason = KINDS[kind]
    make(tmp_path / "result.json")  # type: ignore[operator]
    with pytest.raises(InputError, match=reason) as refused:
        load_result(tmp_path)
    assert "\n" not in str(refused.value)
