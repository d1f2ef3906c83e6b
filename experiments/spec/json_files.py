"""JSON files of a run: written whole or not at all, and read back by their type."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from mrclab.linux.errors import InputError
from mrclab.linux.regular_files import read_regular

LARGEST_BYTES = 256 << 20
"""Of a file that is read back."""
FormT = TypeVar("FormT")


def write_whole(path: Path, text: str) -> Path:
    """Write a file, whole or not at all, and return its path. Two processes may write it at a time."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    draft.write_text(text, encoding="utf-8", newline="\n")
    os.replace(draft, path)
    return path


def read_form(form: TypeAdapter[FormT], path: Path, what: str, missing: str) -> FormT:
    """Read a file in a form; ``what`` names it in messages, such as ``run``.

    Raise InputError with the text ``missing`` if there is no file, and with the place of the error if it has
    another form.
    """
    try:
        return form.validate_json(read_regular(path, LARGEST_BYTES))
    except FileNotFoundError:
        raise InputError(missing) from None
    except ValidationError as error:
        raise InputError(f"not a {what}: {one_line(error)}", where=str(path)) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None


def one_line(error: ValidationError) -> str:
    """Return the first error: its place and its message."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else str(first["msg"])
