"""Every lab: its skeleton gets a hint, its solution passes, and each mistake gets the right hint."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from mrclab.labs import student
from mrclab.labs.catalogue import Lab, Outcome, all_labs, folder_of
from mrclab.labs.checks import unanswered
from mrclab.labs.grading.tables import rubric_of
from mrclab.labs.judge import judge
from mrclab.labs.worker import load_checks
from tests.labs.mistakes import Mistake, mistakes_of

LABS = {lab.folder: lab for lab in all_labs()}


MISTAKES = [
    pytest.param(name, mistake, id=f"{name}-{mistake.name}")
    for name, lab in LABS.items()
    for mistake in mistakes_of(folder_of(lab))
]


def outcomes_of(lab: Lab, folder: Path) -> list[Outcome]:
    return list(judge(folder_of(lab) / "check.py", folder, lab.spec.check_limit_s))


@pytest.mark.slow
@pytest.mark.parametrize("name", LABS)
def test_the_solution_passes(name: str, tmp_path: Path) -> None:
    student.solution(LABS[name], tmp_path / "mine")
    assert [outcome for outcome in outcomes_of(LABS[name], tmp_path / "mine") if not outcome.passed] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", LABS)
def test_the_skeleton_gets_a_hint_and_no_error(name: str, tmp_path: Path) -> None:
    student.start(LABS[name], tmp_path / "mine")
    outcomes = outcomes_of(LABS[name], tmp_path / "mine")
    hints = [outcome.hint for outcome in outcomes if outcome.tried and not outcome.passed]
    assert hints
    assert [hint for hint in hints if re.search(r"Error|Exception", hint)] == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mistake"), MISTAKES)
def test_a_mistake_gets_the_hint_that_names_its_idea(name: str, mistake: Mistake, tmp_path: Path) -> None:
    student.solution(LABS[name], tmp_path / "mine")
    mistake.write(tmp_path / "mine")
    hints = [outcome.hint for outcome in outcomes_of(LABS[name], tmp_path / "mine") if not outcome.passed]
    assert any(mistake.hint in hint for hint in hints), hints


@pytest.mark.parametrize("name", LABS)
def test_a_lab_is_complete(name: str) -> None:
    lab = LABS[name]
    folder = folder_of(lab)
    assert len(mistakes_of(folder)) >= 3
    readme = (folder / "README.md").read_text()
    for heading in ("**Aim.**", "## Background", "## Steps", "## Questions", "## What to hand in"):
        assert heading in readme
    instructor = (folder / "instructor.md").read_text()
    for heading in ("## Timing", "## Pitfalls", "## Answers"):
        assert heading in instructor
    assert load_checks(folder / "check.py")
    assert (folder / "start" / "answers.md").is_file()
    for name in lab.spec.files:
        assert (folder / "start" / name).is_file()
        assert (folder / "solution" / name).is_file()
    assert unanswered((folder / "start" / "answers.md").read_text())


@pytest.mark.parametrize("name", LABS)
def test_the_questions_of_the_readme_are_those_of_the_page_of_answers(name: str) -> None:
    folder = folder_of(LABS[name])
    questions = (folder / "README.md").read_text().partition("## Questions\n")[2].partition("\n## ")[0]
    asked = re.findall(r"^(\d+)\. ", questions, re.MULTILINE)
    answered = re.findall(r"^## (\d+)\. ", (folder / "start" / "answers.md").read_text(), re.MULTILINE)
    assert asked == answered


@pytest.mark.parametrize("name", LABS)
def test_each_question_has_points_and_says_what_for(name: str) -> None:
    rubric = rubric_of(LABS[name])
    page = (folder_of(LABS[name]) / "start" / "answers.md").read_text()
    assert list(rubric) == re.findall(r"^## (\d+)\. ", page, re.MULTILINE)
    assert all(len(lines) >= 2 and all(len(line) > 20 for line in lines) for lines in rubric.values())


@pytest.mark.parametrize("name", LABS)
def test_a_skeleton_and_its_solution_have_the_same_functions(name: str) -> None:
    folder = folder_of(LABS[name])
    for path in (folder / "start").glob("*.py"):
        solution = folder / "solution" / path.name
        if not solution.exists():
            continue
        names = {
            node.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }
        solved = {
            node.name
            for node in ast.walk(ast.parse(solution.read_text()))
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }
        assert names <= solved
