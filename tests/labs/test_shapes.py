"""Correct solutions that are written in other ways pass the checks. Plausible wrong solutions do not pass."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import yaml

from mrclab.labs import student
from mrclab.labs.catalogue import Outcome, find, folder_of
from mrclab.labs.checks import Student, run_one
from mrclab.labs.measuring import CACHE
from mrclab.labs.worker import load_checks
from tests.support.paths import ROOT

SHAPES: list[dict[str, Any]] = yaml.safe_load((ROOT / "tests" / "labs" / "shapes.yaml").read_text())
RIGHT = [shape for shape in SHAPES if "hint" not in shape]
WRONG = [shape for shape in SHAPES if "hint" in shape]


def outcomes(lab: str, folder: Path, words: list[str]) -> list[Outcome]:
    """Run the checks of a lab whose titles have these words."""
    checks = load_checks(folder_of(find(lab)) / "check.py")
    chosen = [named for named in checks if any(word in named.title for word in words)]
    assert len(chosen) >= len(words)
    work = Student(folder)
    try:
        return [run_one(named, work, 60) for named in chosen]
    finally:
        work.code.close()


def changed(tmp_path: Path, shape: dict[str, Any]) -> Path:
    folder = tmp_path / "mine"
    student.solution(find(shape["lab"]), folder)
    with (folder / shape["file"]).open("a") as code:
        code.write(f"\n{shape['code']}\n")
    return folder


def test_there_are_forty_right_ones() -> None:
    assert len(RIGHT) >= 40
    assert len({shape["name"] for shape in SHAPES}) == len(SHAPES)


@pytest.mark.parametrize("shape", RIGHT, ids=lambda shape: shape["name"])
def test_a_right_solution_of_another_shape_passes(shape: dict[str, Any], tmp_path: Path) -> None:
    found = outcomes(shape["lab"], changed(tmp_path, shape), shape["checks"])
    assert [outcome for outcome in found if not outcome.passed] == []


@pytest.mark.parametrize("shape", WRONG, ids=lambda shape: shape["name"])
def test_a_plausible_wrong_solution_gets_a_hint(shape: dict[str, Any], tmp_path: Path) -> None:
    found = outcomes(shape["lab"], changed(tmp_path, shape), shape["checks"])
    assert any(shape["hint"] in outcome.hint for outcome in found if not outcome.passed), found


@pytest.mark.parametrize(
    ("at", "value", "hint"), [(0, "029900000000", "destination MAC"), (22, "20010db8", "source")]
)
def test_a_packet_of_lab_1_has_the_addresses_that_are_asked_for(
    at: int, value: str, hint: str, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    student.solution(find("1"), folder)
    capture = bytearray((folder / "packet.pcap").read_bytes())
    assert struct.unpack_from("<I", capture)[0] == 0xA1B2C3D4
    new = bytes.fromhex(value)
    capture[40 + at : 40 + at + len(new)] = new
    (folder / "packet.pcap").write_bytes(capture)
    (found,) = outcomes("1", folder, ["packet.pcap"])
    assert hint in found.hint


def test_the_addresses_of_lab_1s_page_are_no_answers() -> None:
    page = (folder_of(find("1")) / "README.md").read_text()
    answers = yaml.safe_load((folder_of(find("1")) / "solution" / "answers.yaml").read_text())
    assert [value for value in answers.values() if isinstance(value, str) and value in page] == []


@pytest.mark.slow
def test_invented_measurements_of_lab_6_do_not_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path))
    folder = tmp_path / "mine"
    student.solution(find("6"), folder)
    cuts = json.loads((folder / "cuts.json").read_text())
    (good,) = outcomes("6", folder, ["is what a run"])
    assert good.passed, good
    for trial in cuts["trials"]:
        trial["recovered_us"] = 1
    (folder / "cuts.json").write_text(json.dumps(cuts))
    (found,) = outcomes("6", folder, ["is what a run"])
    assert "gives another time" in found.hint


def test_invented_measurements_of_lab_7_do_not_pass(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    student.solution(find("7"), folder)
    invented = {
        "all_reduce_before": 10,
        "all_reduce_with_three_planes": 13,
        "all_reduce_with_a_port_less": 11,
        "step_factor": 1.15,
    }
    (folder / "measured.yaml").write_text(yaml.safe_dump(invented))
    (found,) = outcomes("7", folder, ["what was measured"])
    assert "gives another time" in found.hint


def test_one_sentence_is_no_answer_to_all_questions(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    student.solution(find("8"), folder)
    page = "".join(f"## {n}. Why?\n\nBecause of the links and planes.\n\n" for n in range(1, 5))
    (folder / "answers.md").write_text(f"# Lab\n\n{page}")
    (found,) = outcomes("8", folder, ["questions"])
    assert "the same answer" in found.hint


@pytest.mark.parametrize(
    "page", ["", "Because of the links and planes.\n", "## 1. Why?\n\nBecause of all links.\n"]
)
def test_a_page_without_its_questions_is_not_answered(page: str, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    student.solution(find("8"), folder)
    (folder / "answers.md").write_text(page)
    (found,) = outcomes("8", folder, ["questions"])
    assert "has no heading of question" in found.hint


def test_a_folder_under_version_control_is_checked(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    student.solution(find("8"), folder)
    (folder / ".git" / "objects").mkdir(parents=True)
    for number in range(300):
        (folder / ".git" / "objects" / f"{number}").touch()
    (found,) = outcomes("8", folder, ["room for NICs"])
    assert found.passed, found
