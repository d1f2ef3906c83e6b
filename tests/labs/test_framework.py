"""The code that hands out, checks and packs labs: no work is lost, and endless code is ended."""

from __future__ import annotations

import json
import os
import re
import tempfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from mrclab import cli
from mrclab.labs import student
from mrclab.labs.catalogue import Lab, LabSpec, Outcome, all_labs, document, find, part_of, passed
from mrclab.labs.checks import Checks, Hint, Student, require, run_all, unanswered
from mrclab.labs.judge import judge
from mrclab.labs.student import MARKER
from mrclab.linux.errors import InputError, MrclabError
from tests.support.paths import ROOT

SPRAY = find("4")
CHECK = """
import os
from mrclab.labs.checks import Checks, require
CHECKS = Checks()

@CHECKS.add("first")
def first(student):
    student.load("mine.py").work()

@CHECKS.add("second")
def second(student):
    require(False, "think again")

@CHECKS.add("third")
def third(student):
    print("this is no outcome")
"""


def judged(tmp_path: Path, work: str, limit_s: float = 60) -> list[Outcome]:
    (tmp_path / "check.py").write_text(CHECK)
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "mine.py").write_text(f"def work():\n    {work}\n")
    return list(judge(tmp_path / "check.py", folder, limit_s))


def test_each_check_has_its_outcome_and_what_is_printed_is_none(tmp_path: Path) -> None:
    outcomes = judged(tmp_path, "print('hello')")
    assert outcomes == [
        Outcome("first", True),
        Outcome("second", False, "think again"),
        Outcome("third", True),
    ]
    assert not passed(outcomes)


@pytest.mark.parametrize(
    ("work", "hint"),
    [
        ("raise ValueError('no such path')", "mine.py, line 2, in work: ValueError: no such path"),
        ("raise NotImplementedError", "mine.py, line 2, in work: nothing is written here yet"),
        ("raise SystemExit", "SystemExit"),
        ("import os; os._exit(3)", "ended the program"),
        ("(", "mine.py, line 2: Python cannot read this"),
    ],
)
def test_whatever_the_code_does_the_other_checks_are_made(tmp_path: Path, work: str, hint: str) -> None:
    first, second, third = judged(tmp_path, work)
    assert not first.passed
    assert hint in first.hint
    assert second.hint == "think again"
    assert third.passed


@pytest.mark.slow
def test_code_that_does_not_end_is_ended(tmp_path: Path) -> None:
    first, second, third = judged(tmp_path, "while True: pass", limit_s=6)
    assert "never ends" in first.hint
    assert second.hint == "think again"
    assert third.passed


def test_nothing_is_left_of_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", None)
    judged(tmp_path, "open('left', 'w').write('x')")
    assert list(scratch.iterdir()) == []


def test_checks_that_cannot_be_run_are_no_hints(tmp_path: Path) -> None:
    (tmp_path / "check.py").write_text("raise ValueError")
    with pytest.raises(MrclabError, match="cannot be run"):
        list(judge(tmp_path / "check.py", tmp_path, 60))


def test_after_a_gate_that_is_closed_nothing_is_tried(tmp_path: Path) -> None:
    checks = Checks()
    tried = []

    @checks.add("gate", gate=True)
    def gate(_: Student) -> None:
        raise Hint("not yet")

    @checks.add("behind")
    def behind(_: Student) -> None:
        tried.append(1)

    gate_outcome, other = run_all(checks, Student(tmp_path))
    assert (gate_outcome.hint, other.tried, tried) == ("not yet", False, [])


def test_an_answer_is_more_than_the_gap() -> None:
    page = "# Lab\n\n## 1. Why?\n\n(your answer)\n\n## 2. How?\n\nBecause links are shared.\n"
    assert unanswered(page) == ["1"]


def test_a_hint_has_no_control_characters_of_a_submission(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text('planes: "\\e[31m\\uD800"\n')
    checks = Checks()

    @checks.add("planes")
    def planes(work: Student) -> None:
        require(False, f"This is {work.values('values.yaml')['planes']}.\nThink.")

    [outcome] = run_all(checks, Student(tmp_path))
    assert outcome.hint == "This is  [31m .\nThink."


def test_values_are_a_mapping_or_a_hint(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("paths: 16")
    assert Student(tmp_path).values("a.yaml") == {"paths": 16}
    for text in ("{", "- 1"):
        (tmp_path / "a.yaml").write_text(text)
        with pytest.raises(Hint, match=r"a\.yaml"):
            Student(tmp_path).values("a.yaml")
    with pytest.raises(Hint, match="missing"):
        Student(tmp_path).values("b.yaml")
    require(True, "nothing")


def test_labs_are_found_by_number_and_name() -> None:
    assert [lab.number for lab in all_labs()] == sorted({lab.number for lab in all_labs()})
    assert {find(word).folder for word in ("4", "04", "spray", "04-spray", "SPRAY")} == {"04-spray"}
    with pytest.raises(InputError, match=r"no lab '99': there are .*4 \(spray\)"):
        find("99")


def test_a_students_work_is_never_written_over(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    student.start(SPRAY, folder)
    (folder / "spray.py").write_text("mine")
    for copy in (student.start, student.solution):
        with pytest.raises(InputError, match="there already"):
            copy(SPRAY, folder)
    assert (folder / "spray.py").read_text() == "mine"


def test_solutions_are_found_in_the_source_or_where_the_instructor_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"no solution of lab 4 here.*MRCLAB_LABS"):
        part_of(SPRAY, "solution", tmp_path)
    monkeypatch.setenv("MRCLAB_LABS", str(ROOT / "labs"))
    assert part_of(SPRAY, "solution", tmp_path) == ROOT / "labs" / "04-spray" / "solution"


def test_what_students_install_has_no_solutions() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    installed = {
        path.relative_to(ROOT / "labs").as_posix()
        for pattern in data["mrclab.labs"]
        for path in (ROOT / "labs").glob(pattern)
    }
    assert "04-spray/start/spray.py" in installed
    assert "04-spray/check.py" in installed
    assert "02-p4-forward/start/variants/a.json" in installed
    assert not [name for name in installed if re.search("solution|mistakes|instructor|rubric", name)]


def test_the_folder_is_the_current_one_the_usual_one_or_the_given_one(tmp_path: Path) -> None:
    student.start(SPRAY, tmp_path / SPRAY.student_folder)
    usual = tmp_path / SPRAY.student_folder
    assert student.work_folder(SPRAY, None, tmp_path) == usual
    assert student.work_folder(SPRAY, None, usual) == usual
    assert student.work_folder(SPRAY, str(usual), Path("/")) == usual
    other = Lab(98, "other", LabSpec(title="t", aim="a", minutes=1, files=()))
    with pytest.raises(InputError, match="folder of lab 04-spray"):
        student.work_folder(other, str(usual), tmp_path)
    with pytest.raises(InputError, match="mrclab lab start 98"):
        student.work_folder(other, None, tmp_path)


def test_a_hand_in_has_the_files_and_what_the_checks_said(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    student.start(SPRAY, folder)
    (folder / "notes.txt").write_text("mine")
    outcomes = [Outcome("a", True), Outcome("b", False, "think")]
    out = tmp_path / "hand-in.zip"
    result = student.pack(SPRAY, folder, out, outcomes, "2030-01-01T00:00:00+00:00", "1.0")
    with zipfile.ZipFile(out) as archive:
        names = {name.partition("/")[2] for name in archive.namelist()}
        assert json.loads(archive.read(f"{SPRAY.student_folder}/result.json")) == result
    assert {*SPRAY.spec.files, "notes.txt", "result.json"} <= names
    assert "README.md" not in names
    assert (result["passed"], result["checks_passed"]) == (False, 1)
    assert result == document(SPRAY, outcomes, result["files"], "2030-01-01T00:00:00+00:00", "1.0")  # type: ignore[arg-type]
    (folder / "spray.py").unlink()
    with pytest.raises(InputError, match=r"no spray\.py"):
        student.pack(SPRAY, folder, out, outcomes, "", "")


def test_a_hand_in_follows_no_links(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("root:!:1::::::")
    folder, out = tmp_path / "mine", tmp_path / "hand-in.zip"
    student.start(SPRAY, folder)
    for name in ("measures.py", "more.txt"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(secret)
        with pytest.raises(InputError, match=f"{name} is a link"):
            student.pack(SPRAY, folder, out, [], "", "")
        assert not out.exists()
        (folder / name).unlink()
        (folder / name).write_text("mine")
    out.symlink_to(secret)
    with pytest.raises(InputError, match="is a link"):
        student.pack(SPRAY, folder, out, [], "", "")
    assert secret.read_text() == "root:!:1::::::"
    (folder / MARKER).unlink()
    (folder / MARKER).symlink_to(secret)
    with pytest.raises(InputError) as refused:
        student.work_folder(SPRAY, str(folder), tmp_path)
    assert "root:!" not in str(refused.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it gives files away")
def test_what_root_makes_in_a_students_folder_is_the_students(tmp_path: Path) -> None:
    home, made = tmp_path / "home", tmp_path / "home" / "mine"
    home.mkdir()
    os.chown(home, 1234, 1235)
    student.start(SPRAY, made)
    student.pack(SPRAY, made, home / "hand-in.zip", [], "", "")
    owners = {path.name: (path.stat().st_uid, path.stat().st_gid) for path in home.rglob("*")}
    assert {"mine", "spray.py", "hand-in.zip"} <= owners.keys()
    assert set(owners.values()) == {(1234, 1235)}
    student.start(SPRAY, tmp_path / "roots")
    assert (tmp_path / "roots" / "spray.py").stat().st_uid == tmp_path.stat().st_uid


@pytest.mark.slow
def test_the_commands_from_start_to_hand_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["lab", "list"]) == 0
    assert "spray" in capsys.readouterr().out
    assert cli.main(["lab", "start", "4"]) == 0
    assert "mrclab lab check 4" in capsys.readouterr().out
    assert cli.main(["lab", "start", "4"]) == 2
    assert "there already" in capsys.readouterr().err
    assert cli.main(["lab", "check", "4"]) == 1
    assert "hint  evenness" in capsys.readouterr().out
    assert cli.main(["lab", "solution", "spray"]) == 0
    capsys.readouterr()
    assert cli.main(["lab", "check", "4", "lab-04-spray-solution", "--json"]) == 0
    assert all(check["passed"] for check in json.loads(capsys.readouterr().out)["checks"])
    assert cli.main(["lab", "submit", "4"]) == 0
    assert zipfile.is_zipfile("lab-04-spray.zip")
    assert cli.main(["lab", "check", "5000"]) == 2
