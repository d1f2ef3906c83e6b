"""result.json on the disk: written whole or not at all, and read in today's form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mrclab.experiments.spec.json_files import one_line, write_whole
from mrclab.linux.errors import DAMAGE, InputError, reason
from mrclab.linux.regular_files import read_regular

NAME = "result.json"
LARGEST_BYTES = 256 << 20
"""A result of thousands of trials has some ten megabytes; reading one takes several times its size."""


def save_result(directory: Path, result: Mapping[str, Any]) -> Path:
    """Write DIR/result.json, whole or not at all, and return its path."""
    return write_whole(directory / NAME, json.dumps(result, indent=1, allow_nan=False) + "\n")


def load_result(directory: Path | str) -> dict[str, Any]:
    """Read the result of a directory (or that file itself), in form ``mrclab.result/2``.

    Older forms are converted. Raise InputError if there is no result.
    """
    from mrclab.experiments.report.model import Result
    from mrclab.experiments.report.upgrade import (
        upgrade,  # imports numpy, which is not needed if a directory has no result
    )

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
        found = upgrade(result)
        Result.model_validate(found)
    return found


@contextmanager
def refused_if_damaged(path: Path) -> Iterator[None]:
    """Raise InputError for any error of the ``with`` body, which reads or shows a damaged result."""
    try:
        yield
    except InputError as error:
        raise error if str(path) in str(error) else InputError(str(error), where=str(path)) from None
    except ValidationError as error:
        raise InputError(f"a damaged result: {one_line(error)}", where=str(path)) from None
    except DAMAGE as error:
        raise InputError(f"a damaged result: {reason(error)}", where=str(path)) from error


def result_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) that every result.json fulfils."""
    text = (
        files("mrclab.experiments.report")
        .joinpath("schema", "result.schema.json")
        .read_text(encoding="utf-8")
    )
    schema: dict[str, Any] = json.loads(text)
    return schema
