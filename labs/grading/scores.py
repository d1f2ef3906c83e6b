"""The score of a lab's "going further": one row of results for each of its parts, and their sums.

A lab with a score has a ``score.py``, written like ``check.py`` (`mrclab.labs.checks`): each part returns its
results by name, such as ``{"us": 585.2, "lost": 0}``. Lower is better. The sums of the first result rank a
class, those of the others decide between equal ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mrclab.labs.catalogue import all_labs, folder_of
from mrclab.labs.judge import judge
from mrclab.labs.model import Lab, Outcome
from mrclab.linux.errors import InputError

NAME = "score.py"


@dataclass(frozen=True)
class Score:
    """The sums over all parts of a score, by the names of the results."""

    sums: tuple[tuple[str, float], ...]

    @property
    def values(self) -> tuple[float, ...]:
        """The sums; a smaller tuple is a better score."""
        return tuple(value for _, value in self.sums)

    def __str__(self) -> str:
        return ", ".join(f"{value:,.0f} {name}" for name, value in self.sums)


def score_file(lab: Lab) -> Path | None:
    """Return the ``score.py`` of a lab, None if the lab has no score."""
    path = folder_of(lab) / NAME
    return path if path.is_file() else None


def require_score(lab: Lab) -> Path:
    """Return the ``score.py`` of a lab. Raise InputError if it has none, with the labs that have one."""
    path = score_file(lab)
    if path is None:
        with_scores = ", ".join(str(one.number) for one in all_labs() if score_file(one))
        raise InputError(f"lab {lab.number} has no score: choose one of {with_scores}")
    return path


def score_parts(lab: Lab, folder: Path, *, quiet: bool = False) -> Iterator[Outcome]:
    """Return the parts of the score of a student's folder, each as it is done. Raise InputError."""
    return judge(require_score(lab), folder, lab.spec.check_limit_s, quiet=quiet)


def score_of(parts: Sequence[Outcome]) -> Score | None:
    """Return the sums over all parts; None if a part has no result, for then there is no score."""
    if not parts or not all(part.passed and part.measured for part in parts):
        return None
    names = tuple(parts[0].measured)
    return Score(tuple((name, sum(part.measured[name] for part in parts)) for name in names))


def ranks(scores: Sequence[Score | None]) -> list[int | None]:
    """Return the rank of each score, 1 for the best; equal scores have the same rank, None has none."""
    values = [score.values for score in scores if score is not None]
    return [None if score is None else 1 + sum(other < score.values for other in values) for score in scores]


def table(parts: Sequence[Outcome]) -> str:
    """Return the parts and their sums as a text table; a part without a result has its hint."""
    names = next((tuple(part.measured) for part in parts if part.measured), ())
    width = max((len(part.check) for part in parts), default=0)
    lines = [f"{'':{width}}" + "".join(f"  {name:>8}" for name in names)]
    for part in parts:
        if part.measured:
            cells = "".join(f"  {part.measured[name]:8,.0f}" for name in names)
        else:
            cells = f"  no result: {part.hint}"
        lines.append(f"{part.check:{width}}{cells}")
    score = score_of(parts)
    if score is not None:
        lines.append(f"{'sum':{width}}" + "".join(f"  {value:8,.0f}" for value in score.values))
    return "\n".join(lines)
