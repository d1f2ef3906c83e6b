"""Read files of other users: only regular files of a limited size, and never the target of a link."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from mrclab.linux.errors import InputError
from mrclab.linux.regular_files import read_regular

LARGEST_BYTES = 5_000_000
"""The largest size of one file."""
_MOST_FILES = 200
_MOST_BYTES = 30_000_000


def read(path: Path, largest_bytes: int = LARGEST_BYTES) -> bytes:
    """Return the content of a regular file. Raise InputError and OSErrors as `read_regular` does."""
    return read_regular(path, largest_bytes)


def regular(folder: Path) -> Iterator[Path]:
    """Yield the regular files in a folder and below it, by name, without following links.

    Hidden folders such as ``.git`` are left out: no lab needs them, and they can have many files.
    """
    for here, folders, names in os.walk(folder, followlinks=False):
        folders[:] = sorted(name for name in folders if name != "__pycache__" and name[0] != ".")
        for name in sorted(names):
            path = Path(here) / name
            if stat.S_ISREG(path.lstat().st_mode):
                yield path


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder's regular files of up to 5 MB, at most 200 files and 30 MB together.

    Links and larger files are left out. Raise InputError if there are more files or bytes.
    """
    total = 0
    target.mkdir()
    target.chmod(0o755)
    for number, path in enumerate(regular(source)):
        try:
            content = read(path)
        except InputError:
            continue
        total += len(content)
        if number >= _MOST_FILES or total > _MOST_BYTES:
            raise InputError(f"{source} has more than {_MOST_FILES} files or {_MOST_BYTES / 1e6:g} MB")
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.parent.chmod(0o755)
        copy.write_bytes(content)
        copy.chmod(0o644)  # so that the code can read it as the user nobody, for any umask
