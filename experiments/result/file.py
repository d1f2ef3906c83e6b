"""result.json on the disk: written whole or not at all, and read again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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

    Raise InputError if there is no result.
    """
    from mrclab.experiments.result.model import SCHEMA, Result  # slow to import

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
    """Raise InputError for any error of the ``with`` body, which reads or shows a damaged result."""
    try:
        yield
    except InputError as error:
        raise error if str(path) in str(error) else InputError(str(error), where=str(path)) from None
    except ValidationError as error:
        raise InputError(f"a damaged result: {one_line(error)}", where=str(path)) from None
    except DAMAGE as error:
        raise InputError(f"a damaged result: {reason(error)}", where=str(path)) from error
