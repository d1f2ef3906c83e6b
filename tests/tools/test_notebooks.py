"""The notebooks have stored outputs, which fit the present sources and name no machine."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from mrclab import cli
from tests.support.paths import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
MACHINE = re.compile(r"(?<![\w.])/(?:home|root|tmp|var|work|usr|opt|Users)/|0x[0-9a-f]{10,}|[A-Z]:\\\\")


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


notebooks, pages = tool("notebooks"), tool("notebook_pages")


def test_there_are_five() -> None:
    assert {path.stem for path in NOTEBOOKS} == {"compare", "own-policy", "recovery", "sweeps", "training"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_those_of_the_sources_and_of_no_machine(path: Path) -> None:
    notebook = notebooks.read(path)
    assert notebook["metadata"][notebooks.STAMP] == notebooks.digest(notebook), "run tools/notebooks.py again"
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert [output for output in outputs if "image/png" in output.get("data", {})]
    for output in outputs:
        data = {kind: text for kind, text in output.get("data", {}).items() if kind != "image/png"}
        assert not MACHINE.search(json.dumps([data, output.get("text", "")]))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_says_which_runs_it_needs_and_becomes_a_page(path: Path) -> None:
    files, commands = notebooks.needs(notebooks.read(path))
    assert commands
    for command in commands:
        words = command.split()[1:]
        cli.parser().parse_args(words)
        assert not [word for word in words if word.endswith((".yaml", ".py")) and word not in files]
    text, pictures = pages.page_of(path)
    assert pictures
    assert all(f"]({name})" in text and data.startswith(b"\x89PNG") for name, data in pictures.items())
    assert text.count("<table") == text.count('<div style="overflow-x: auto">') > 0
    assert f"notebooks/{path.stem}.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_sweep_of_the_notebook_gives_what_is_stored(tmp_path: Path) -> None:
    (path,) = (path for path in NOTEBOOKS if path.stem == "sweeps")
    notebook = notebooks.read(path)
    notebooks.prepare(notebook, tmp_path)
    import pandas as pd

    first = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    stored = "".join(first["outputs"][0]["data"]["text/plain"])
    assert str(pd.read_csv(tmp_path / "sweep/points.csv").head()) == stored
