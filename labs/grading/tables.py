"""Grades as a plain table, for Moodle and for Gradescope, and a table in which a teacher grades answers."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from mrclab.labs.catalogue import Lab, part_of
from mrclab.labs.grading.grade import Graded
from mrclab.linux.errors import InputError

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def cell(value: object) -> str:
    """Return a text for a spreadsheet. If it begins like a formula, put a quote in front of it.

    A file's name may have bytes that are no UTF-8. They become question marks.
    """
    text = str(value).encode("utf-8", errors="replace").decode()
    return f"'{text}" if text.startswith(_FORMULA) and not isinstance(value, int | float) else text


def _table(rows: Sequence[Sequence[object]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([cell(value) for value in row] for row in rows)
    return out.getvalue()


def plain(lab: Lab, graded: Sequence[Graded]) -> str:
    """Return a CSV table with a row for each person and a column for each check."""
    titles = next((tuple(o.check for o in one.outcomes) for one in graded if one.outcomes), ())
    head = ["name", "number", "student", "lab", "points", "passed", "checks", "time", "late", "note"]
    names = next((tuple(name for name, _ in one.score.sums) for one in graded if one.score), ())
    scored = ["rank", *(f"score: {name}" for name in names)] if names else []
    head += ["similar to", "similarity", "same files as", *scored, *titles]
    rows: list[list[object]] = [list(head)]
    for one in graded:
        sums = one.score.values if one.score else ("",) * len(names)
        scores = [one.rank or "", *sums] if names else []
        marks = [int(outcome.passed) for outcome in one.outcomes] or [0] * len(titles)
        rows.append(
            [
                one.person.name,
                one.person.number,
                one.student,
                lab.number,
                f"{one.points():.1f}",
                one.passed,
                len(titles),
                one.time.isoformat() if one.time else "",
                "late" if one.late else "",
                one.note,
                one.similar_to,
                f"{one.similarity:.2f}",
                ", ".join(one.same_files),
                *(round(value, 1) if isinstance(value, float) else value for value in scores),
                *marks,
            ]
        )
    return _table(rows)


def moodle(graded: Sequence[Graded]) -> str:
    """Return a grading worksheet for Moodle.

    Moodle finds people by their identifier, the number in the names of the downloaded folders.
    """
    head = ["Identifier", "Full name", "Grade", "Maximum Grade", "Feedback comments"]
    rows: list[list[object]] = [list(head)]
    for one in graded:
        number = f"Participant {one.person.number}" if one.person.number else ""
        rows.append([number, one.person.name, f"{one.points():.2f}", "100.00", feedback(one)])
    return _table(rows)


def feedback(one: Graded) -> str:
    """Return the feedback for a student: the checks that did not pass, with their hints."""
    lines = [one.note] if one.note else []
    lines += [f"{o.check}: {o.hint}" for o in one.outcomes if not o.passed and o.tried]
    return "\n".join(lines) or "All checks pass."


def gradescope(one: Graded) -> dict[str, Any]:
    """Return the ``results.json`` of Gradescope's autograders for one hand-in."""
    share = 100.0 / max(1, len(one.outcomes))
    return {
        "score": round(one.points(), 2),
        "output": one.note or f"{one.passed} of {len(one.outcomes)} checks pass.",
        "tests": [
            {
                "name": outcome.check,
                "score": round(share * outcome.passed, 4),
                "max_score": round(share, 4),
                "status": "passed" if outcome.passed else "failed",
                "output": outcome.hint,
            }
            for outcome in one.outcomes
        ],
    }


def answers(graded: Sequence[Graded], rubric: Mapping[str, Sequence[str]]) -> str:
    """Return a CSV table with the answers of all hand-ins, sorted by question.

    The column of points is empty: the teacher fills it in. The next two columns, from `rubric`, have the
    largest number of points and the criteria.
    """
    rows: list[list[object]] = [["question", "name", "answer", "points", "of", "a point each for"]]
    questions = sorted({number for one in graded for number in one.answers}, key=lambda n: (len(n), n))
    for number in questions:
        lines = rubric.get(number, ())
        worth = ["", len(lines) or "", "; ".join(lines)]
        rows += [[number, one.person.name, one.answers.get(number, ""), *worth] for one in graded]
    return _table(rows)


RUBRIC_FILE = "rubric.yaml"


def rubric_of(lab: Lab) -> Mapping[str, tuple[str, ...]]:
    """Return each question's criteria, each worth one point, or {} if only students' files are installed."""
    try:
        text = part_of(lab, RUBRIC_FILE).read_text(encoding="utf-8")
    except InputError:
        return {}
    return {str(number): tuple(lines) for number, lines in yaml.safe_load(text).items()}
