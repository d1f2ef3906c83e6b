"""Scores are summed, and a class is ordered by score. Answers must be numbers from the student's own run."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from mrclab import cli
from mrclab.labs import student
from mrclab.labs.catalogue import Outcome, all_labs, find, folder_of
from mrclab.labs.checks import Checks, Student, answers_of, numbers_in, run_one
from mrclab.labs.grading import tables
from mrclab.labs.grading.grade import Graded
from mrclab.labs.grading.handins import Person
from mrclab.labs.judge import Score, ranks, score_file, score_of, score_table
from mrclab.labs.worker import load_checks

TWO = [
    Outcome("a", True, measured={"us": 10.0, "lost": 1}),
    Outcome("b", True, measured={"us": 5.5, "lost": 2}),
]


def test_a_score_is_the_sum_over_all_parts() -> None:
    assert score_of(TWO) == Score((("us", 15.5), ("lost", 3)))
    assert str(score_of(TWO)) == "16 us, 3 lost"
    assert score_table(TWO).splitlines()[-1].split() == ["sum", "16", "3"]


@pytest.mark.parametrize("more", [Outcome("c", False, "think again"), Outcome("c", True)])
def test_a_part_without_a_result_leaves_no_score(more: Outcome) -> None:
    assert score_of([*TWO, more]) is None
    assert "no result" in score_table([*TWO, more])


def test_the_first_result_ranks_and_the_second_decides_between_equal_ones() -> None:
    def score(*values: float) -> Score:
        return Score(tuple(zip(("us", "lost"), values, strict=True)))

    assert ranks([score(3, 0), None, score(1, 9), score(1, 2), score(3, 0)]) == [3, None, 2, 1, 3]


def test_the_table_of_a_class_has_scores_and_ranks_only_if_the_lab_has_a_score() -> None:
    outcomes = (Outcome("x", True),)
    good = Graded(Person("ada"), outcomes, score=Score((("us", 1516.3), ("lost", 3))), rank=1)
    rows = list(csv.DictReader(io.StringIO(tables.plain(find("4"), [good, Graded(Person("bob"), outcomes)]))))
    assert [(row["rank"], row["score: us"], row["score: lost"]) for row in rows] == [
        ("1", "1516.3", "3"),
        ("", "", ""),
    ]
    assert "rank" not in tables.plain(find("4"), [Graded(Person("bob"), outcomes)])


def test_a_lab_without_a_score_names_those_that_have_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lab", "score", "8"]) == 2
    assert "lab 8 has no score: choose one of 4, 5" in capsys.readouterr().err


def test_the_page_of_a_lab_with_a_score_says_how_to_get_one() -> None:
    scored = [lab for lab in all_labs() if score_file(lab)]
    assert [lab.number for lab in scored] == [4, 5]
    for lab in scored:
        text = (folder_of(lab) / "README.md").read_text(encoding="utf-8")
        assert f"mrclab lab score {lab.number}" in text.partition("## Going further")[2]
        assert load_checks(folder_of(lab) / "score.py")


@pytest.mark.slow
def test_a_repair_that_asks_for_everything_again_has_a_worse_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (folder_of(find("5")) / "README.md").read_text(encoding="utf-8")
    us, needless = (
        int(number) for number in re.findall(r"^Your score: (\d+) us, (\d+) needless", page, re.M)[0]
    )
    folder = tmp_path / "hasty"
    student.solution(find("5"), folder)
    text = (folder / "repair.py").read_text()
    (folder / "repair.py").write_text(text.replace("timeout_ns = timeout_ns", "timeout_ns = 12_000"))
    assert cli.main(["lab", "score", "5", str(folder), "--json"]) == 0
    score = json.loads(capsys.readouterr().out)["score"]
    assert score["us"] > us
    assert score["needless"] > needless
    (folder / "repair.py").write_text("x = 1\n")
    assert cli.main(["lab", "score", "5", str(folder)]) == 1
    assert "No score" in capsys.readouterr().out


# -- numbers of a student's own run ------------------------------------------------------------------------


def test_numbers_are_found_in_an_answer() -> None:
    assert numbers_in("20.4 % and 1,234.5 us, or 3, not p4 or 7x.") == [20.4, 1234.5, 3.0, 7.0]


@pytest.mark.parametrize(
    ("lab", "number", "wrong"),
    [
        ("3", "10.7", "80"),
        pytest.param("4", "20.4", "21.4", marks=pytest.mark.slow),
        ("5", "52", "62"),
        ("6", "185", "18"),
        ("7", "14.8", "14.1"),
    ],
)
def test_an_answer_without_a_number_of_ones_own_run_gets_a_hint_without_it(
    lab: str, number: str, wrong: str, tmp_path: Path
) -> None:
    student.solution(find(lab), tmp_path / "mine")
    page = tmp_path / "mine" / "answers.md"
    (named,) = (c for c in load_checks(folder_of(find(lab)) / "check.py") if "questions" in c.title)
    work = Student(tmp_path / "mine")
    try:
        assert run_one(named, work, 60).passed
        page.write_text(page.read_text().replace(number, wrong))
        outcome = run_one(named, work, 60)
    finally:
        work.code.close()
    assert "number of your own run" in outcome.hint
    assert number not in outcome.hint
    assert answers_of(page.read_text())


def test_a_check_that_returns_results_has_them_in_its_outcome(tmp_path: Path) -> None:
    checks = Checks()

    @checks.add("part")
    def part(_: Student) -> dict[str, float]:
        return {"us": 2.0}

    (named,) = checks
    assert run_one(named, Student(tmp_path)).measured == {"us": 2.0}


@pytest.mark.parametrize("lab", ["2", "3"])
def test_a_lab_in_p4_says_first_how_to_get_the_compiler(lab: str) -> None:
    text = (folder_of(find(lab)) / "README.md").read_text(encoding="utf-8")
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings[0] == "## First: the compiler"
    first = text.partition("## First: the compiler")[2].partition("## Background")[0]
    assert all(way in first for way in ("Docker", "p4lang-p4c", "From source", "Without"))


def test_a_forgotten_return_is_named(tmp_path: Path) -> None:
    checks = Checks()

    @checks.add("a number")
    def number(student: Student) -> None:
        _ = f"{None:.1f}"

    (named,) = checks
    assert "returned: None: is a return missing?" in run_one(named, Student(tmp_path)).hint
