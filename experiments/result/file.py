"""Write and read the JSON files of a run, such as result.json. A reader never finds a half-written file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from mrclab.linux.errors import DAMAGE, InputError, reason
from mrclab.linux.regular_files import read_regular

LARGEST_BYTES = 256 << 20
"""The largest file that is read. A result of thousands of trials has about 10 MB."""
FormT = TypeVar("FormT")


def write_whole(path: Path, text: str) -> Path:
    """Write a file in one step, and return its path. Two processes may do this at the same time."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    draft.write_text(text, encoding="utf-8", newline="\n")
    os.replace(draft, path)
    return path


def read_form(form: TypeAdapter[FormT], path: Path, what: str, missing: str) -> FormT:
    """Read a JSON file of a given form. ``what`` names the file in error messages, for instance ``run``.

    If there is no file, raise InputError with the text ``missing``. If the form differs, raise an
    InputError that names the wrong key.
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
    """Return the first error of a validation as one line: the key's path and the message."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else str(first["msg"])


NAME = "result.json"


def save_result(directory: Path, result: Mapping[str, Any]) -> Path:
    """Write DIR/result.json in one step, and return its path."""
    return write_whole(directory / NAME, json.dumps(result, indent=1, allow_nan=False) + "\n")


def load_result(directory: Path | str) -> dict[str, Any]:
    """Read result.json (form ``mrclab.result/2``), from the path of its directory or of the file.

    Raise InputError if there is no result, or if it is damaged.
    """
    from mrclab.experiments.result.model import SCHEMA, Result  # only here: this import is slow

    path = Path(directory)
    if path.is_dir():
        path /= NAME
    try:
        result = json.loads(read_regular(path, LARGEST_BYTES).decode("utf-8"))
    except FileNotFoundError:
        raise InputError(f"no result in '{directory}': give the directory of a finished run") from None
    except RecursionError:
        raise InputError("not a result: its values are nested too deeply", where=str(path)) from None
    except OSError as error:
        raise InputError(f"not a result: {error.strerror or error}", where=str(path)) from None
    except ValueError as error:
        raise InputError(f"not a result: {error}", where=str(path)) from None
    if not isinstance(result, dict):
        raise InputError("not a result: it holds no object", where=str(path))
    with refused_if_damaged(path):
        if result.get("schema") != SCHEMA:
            raise InputError(f"not a result of schema {SCHEMA}")
        Result.model_validate(result)
    return result


@contextmanager
def refused_if_damaged(path: Path) -> Iterator[None]:
    """Raise InputError if the ``with`` body raises an error that a damaged result can cause."""
    try:
        yield
    except InputError as error:
        raise error if str(path) in str(error) else InputError(str(error), where=str(path)) from None
    except ValidationError as error:
        raise InputError(f"a damaged result: {one_line(error)}", where=str(path)) from None
    except DAMAGE as error:
        raise InputError(f"a damaged result: {reason(error)}", where=str(path)) from error
