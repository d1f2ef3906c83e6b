"""The labs in the browser: a page's worker runs their checks, with JSON as input and output."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mrclab.labs.catalogue import find, part_of
from mrclab.labs.measuring import CACHE
from mrclab.play.desk import LABS, Desk, forget, shown, skeletons

SKELETONS = {lab["number"]: lab for lab in skeletons()}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    yield Desk(tmp_path)
    forget(tmp_path)


def solved(number: int) -> str:
    files = dict(SKELETONS[number]["files"])
    for path in part_of(find(str(number)), "solution").iterdir():
        files[path.name] = shown(path)
    return json.dumps(files)


def outcomes(desk: Desk, number: int, files: str) -> list[dict[str, Any]]:
    seen: list[str] = []
    found = json.loads(desk.check(number, files, seen.append))
    assert [json.loads(line) for line in seen] == found
    return found


def test_the_page_offers_the_labs_that_need_no_fabric() -> None:
    assert tuple(SKELETONS) == LABS == (1, 4, 5, 6, 8)
    assert SKELETONS[1]["files"]["packet.pcap"].startswith("d4 c3 b2 a1 ")


@pytest.mark.parametrize("number", [1, 8])
def test_a_skeleton_gets_hints_and_a_solution_passes(desk: Desk, number: int) -> None:
    before = outcomes(desk, number, json.dumps(SKELETONS[number]["files"]))
    assert not any(one["passed"] for one in before)
    assert all(one["hint"] for one in before)
    assert all(one["passed"] for one in outcomes(desk, number, solved(number)))


def test_a_run_again_is_left_to_the_command_line(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "emscripten")
    monkeypatch.delenv(CACHE, raising=False)  # otherwise a run that tests of grading have kept would be used
    found = outcomes(desk, 6, solved(6))
    left = [one for one in found if not one["passed"]]
    assert [(one["check"], one["tried"]) for one in left] == [
        ("cuts.json is what a run of cuts.yaml gives", False)
    ]
    assert "mrclab lab check" in left[0]["hint"]


def test_an_error_names_the_line_and_a_correction_is_seen(desk: Desk) -> None:
    files = json.loads(solved(8))
    broken = {**files, "fabric.py": "def radix(a, b, c):\n    return 1 // 0\n"}
    first = outcomes(desk, 8, json.dumps(broken))[0]
    assert "fabric.py, line 2, in radix: ZeroDivisionError" in first["hint"]
    assert outcomes(desk, 8, json.dumps(files))[0]["passed"]
    leaves = {**files, "fabric.py": "raise SystemExit\n"}
    assert "SystemExit" in outcomes(desk, 8, json.dumps(leaves))[0]["hint"]


def test_a_file_is_run_and_a_capture_shows_its_way(desk: Desk) -> None:
    assert "h2" in desk.run(1, json.dumps(SKELETONS[1]["files"]), "packet.pcap")
    assert "ports of a switch" in desk.run(8, solved(8), "compare.py")
    wrong = {**SKELETONS[8]["files"], "compare.py": "print(1)\nnothing\n"}
    said = desk.run(8, json.dumps(wrong), "compare.py")
    assert said.startswith("1\n")
    assert "line 2" in said
    assert "NameError" in said


def test_a_hand_in_has_the_files_and_the_outcomes(desk: Desk) -> None:
    outcomes(desk, 8, solved(8))
    archive = zipfile.ZipFile(io.BytesIO(desk.hand_in(8, solved(8), "2026-01-01T00:00:00Z", "1")))
    result = json.loads(archive.read("lab-08-design/result.json"))
    assert result["passed"]
    assert "lab-08-design/fabric.py" in archive.namelist()
