"""Read files of other users: only regular files of a limited size, and never through a link."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from mrclab.linux.errors import InputError

_NO_WAIT = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def read_regular(path: Path, largest_bytes: int) -> bytes:
    """Return the content of a regular file.

    Raise InputError for a link, a device, a pipe or a file that is too large. Raise FileNotFoundError and
    other OSErrors as `open` does.
    """
    if path.is_symlink():
        raise InputError(f"{path} is a link: put the file itself there")
    fd = os.open(path, os.O_RDONLY | _NO_WAIT)
    with os.fdopen(fd, "rb") as file:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise InputError(f"{path} is no regular file")
        if about.st_size > largest_bytes:
            raise InputError(f"{path} is larger than {largest_bytes / 1e6:g} MB")
        content = file.read(largest_bytes + 1)
    if len(content) > largest_bytes:
        raise InputError(f"{path} is larger than {largest_bytes / 1e6:g} MB")
    return content
