"""A damaged result.json is refused with an error of one line, whatever value is missing or wrong."""

from __future__ import annotations

import io
import json
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mrclab.experiments.report.compare import render_compare
from mrclab.experiments.report.table import render_result
from mrclab.experiments.result.file import load_result, refused_if_damaged
from mrclab.linux.errors import InputError

VALUES = [None, "x", -1, 1e300, [], {}, [[]], {"x": 1}, True]


def damaged(result: dict[str, Any], drawn: random.Random) -> dict[str, Any]:
    """Return a copy in which one value is missing or replaced."""
    found = deepcopy(result)
    at: Any = found
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = drawn.choice(keys)
        below = at[key]
        if isinstance(below, dict | list) and below and drawn.random() < 0.8:
            at = below
            continue
        if drawn.random() < 0.3:
            del at[key]
        else:
            at[key] = drawn.choice(VALUES)
        return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(150))
def test_damage_is_shown_or_refused_in_a_line(both: dict[str, Any], tmp_path: Path, seed: int) -> None:
    """A damaged file must not cause a KeyError, TypeError or AttributeError."""
    path = tmp_path / "result.json"
    path.write_text(json.dumps(damaged(both, random.Random(seed))))
    console, refusal = Console(file=io.StringIO()), f"{path}: shown"
    try:
        found = load_result(tmp_path)
        with refused_if_damaged(path):
            console.print(render_result(found))
            console.print(render_compare(found, both))
    except InputError as error:
        refusal = str(error)
    assert str(path) in refusal
    assert "\n" not in refusal


NONE = ["", "[]", "{}", "null", "[" * 100_000, '{"schema": "mrclab.result/2"}', "\xff"]


@pytest.mark.parametrize("text", NONE)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"result\.json"):
        load_result(tmp_path)
