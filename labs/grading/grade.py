"""Check a class's hand-ins again, several at a time, in processes without rights. Compare the hand-ins.

Hand-ins are compared by their runs of consecutive tokens, as in MOSS (Schleimer, Wilkerson, Aiken 2003). In
these runs, each name and each number is replaced by its kind. So renamed variables, other comments and
another layout change nothing. Similarity alone proves nothing: short correct solutions resemble each other.
"""

from __future__ import annotations

import hashlib
import io
import keyword
import tempfile
import tokenize
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from mrclab.labs.catalogue import Lab, Outcome, folder_of, passed
from mrclab.labs.checks import answers_of
from mrclab.labs.grading.handins import HandIn, Person, claimed_time, unpack
from mrclab.labs.judge import Score, judge, ranks, score_file, score_of, score_parts
from mrclab.labs.sandbox import files
from mrclab.labs.sandbox.remote import RemoteCode
from mrclab.labs.student import variant_in
from mrclab.linux.errors import InputError, MachineError

_RUN = 12
_LONGEST_LINE, _LONGEST_TEXT, _MOST_CHARACTERS = 300, 100_000, 1_000_000
"""Limits of the compared code: the time that `tokenize` takes can grow with the square of a line's length."""
_SKIPPED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}


def fingerprint(texts: Iterable[str]) -> frozenset[int]:
    """Return the sequences of twelve consecutive tokens in Python texts, as hashes."""
    runs: set[int] = set()
    left = _MOST_CHARACTERS
    for text in texts:
        lines = text[: min(left, _LONGEST_TEXT)].splitlines()
        short = "".join(f"{line[:_LONGEST_LINE]}\n" for line in lines)
        left = max(0, left - len(short))
        tokens = _tokens(short)
        runs |= {hash(tuple(tokens[at : at + _RUN])) for at in range(max(0, len(tokens) - _RUN + 1))}
    return frozenset(runs)


def _tokens(text: str) -> list[str]:
    found = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in _SKIPPED or (token.type == tokenize.STRING and token.string.startswith('"""')):
                continue
            if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
                found.append("name")
            elif token.type in (tokenize.NUMBER, tokenize.STRING):
                found.append("value")
            else:
                found.append(token.string)
    except (tokenize.TokenError, SyntaxError, IndentationError):
        pass  # use the tokens before the error
    return found


def closest(prints: Mapping[str, frozenset[int]], skeleton: frozenset[int]) -> dict[str, tuple[str, float]]:
    """Return for each hand-in the most similar other hand-in, and the share of common sequences (0 to 1).

    See `fingerprint` for the sequences of tokens. Sequences of the skeleton do not count. A hand-in without
    other sequences gets ("", 0.0).
    """
    own = {name: runs - skeleton for name, runs in prints.items()}
    found = {}
    for name, mine in own.items():
        best = ("", 0.0)
        for other, theirs in own.items():
            if other != name and mine and theirs:
                share = len(mine & theirs) / min(len(mine), len(theirs))
                best = max(best, (other, share), key=lambda pair: pair[1])
        found[name] = best
    return found


@dataclass(frozen=True)
class Graded:
    """The grade of a hand-in. If a hand-in is missing or could not be checked, ``note`` is the reason."""

    person: Person
    outcomes: tuple[Outcome, ...] = ()
    time: datetime | None = None
    late: bool = False
    note: str = ""
    student: str = ""
    """The number from which the variant was drawn, or "" if all values are those of the lab's page."""
    answers: dict[str, str] = field(default_factory=dict)
    sums: frozenset[str] = frozenset()
    runs: frozenset[int] = frozenset()
    similar_to: str = ""
    similarity: float = 0.0
    same_files: tuple[str, ...] = ()
    """The people who handed in an equal file. Unchanged files of the skeleton do not count."""
    score: Score | None = None
    """The score of the lab's "going further", if the lab has one and all checks pass."""
    rank: int | None = None
    """The rank of the score in the class, 1 for the best."""

    @property
    def passed(self) -> int:
        """The number of checks that pass."""
        return sum(outcome.passed for outcome in self.outcomes)

    def points(self, of: float = 100.0) -> float:
        """Return the points: the share of checks that pass, times ``of``."""
        return of * self.passed / len(self.outcomes) if self.outcomes else 0.0


def require_sandbox() -> None:
    """Raise MachineError if the sandbox cannot take all rights from the hand-ins' code on this machine."""
    missing: list[str] = []
    with tempfile.TemporaryDirectory() as empty:
        (Path(empty) / "nothing.py").touch()
        code = RemoteCode(Path(empty), missing.append)
        try:
            code.begin(60)
            code.value("nothing.py", "__name__")
        finally:
            code.close()
    if missing:
        raise MachineError(
            f"hand-ins would run without a sandbox: {missing[0]}",
            "use a machine or container that allows namespaces, or --unconfined in a container to throw away",
        )


def grade(
    lab: Lab, found: Sequence[HandIn], due: datetime | None, jobs: int, report: Callable[[Graded], None]
) -> list[Graded]:
    """Check the hand-ins and return their grades in the same order. Call ``report`` with each new grade."""
    skeleton = folder_of(lab) / "start"
    given = {_sum(path) for path in files.regular(skeleton)}

    def one(numbered: tuple[int, HandIn]) -> Graded:
        number, hand_in = numbered
        done = _graded(lab, hand_in, Path(scratch) / str(number), due, given)
        report(done)
        return done

    with tempfile.TemporaryDirectory(prefix="mrclab-grade-") as scratch, ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(one, enumerate(found)))
    start = fingerprint(path.read_text(encoding="utf-8") for path in skeleton.glob("*.py"))
    return _ranked(_compared(results, start))


def _ranked(results: Sequence[Graded]) -> list[Graded]:
    placed = ranks([one.score for one in results])
    return [replace(one, rank=rank) for one, rank in zip(results, placed, strict=True)]


def _graded(lab: Lab, hand_in: HandIn, target: Path, due: datetime | None, given: set[str]) -> Graded:
    try:
        work = unpack(hand_in, lab, target)
    except InputError as error:
        return Graded(hand_in.person, note=" ".join(str(error).split()))
    number = hand_in.person.student or None
    check = folder_of(lab) / "check.py"
    outcomes = tuple(judge(check, work, lab.spec.check_limit_s, quiet=True, number=number))
    parts = list(score_parts(lab, work, quiet=True)) if passed(outcomes) and score_file(lab) else []
    time = claimed_time(work)
    texts = {
        path.relative_to(work).as_posix(): files.read(path).decode("utf-8", errors="replace")
        for path in files.regular(work)
    }
    return Graded(
        hand_in.person,
        outcomes,
        time,
        late=due is not None and time is not None and time > due,
        note="" if time else "without result.json, so without a time",
        student=number or variant_in(work).student,
        answers=answers_of(texts.get("answers.md", "")),
        sums=frozenset(_sum(work / name) for name in lab.spec.files if (work / name).is_file()) - given,
        runs=fingerprint(text for name, text in texts.items() if name.endswith(".py")),
        score=score_of(parts),
    )


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _compared(results: Sequence[Graded], skeleton: frozenset[int]) -> list[Graded]:
    keys = [f"{number}" for number, _ in enumerate(results)]
    near = closest({key: one.runs for key, one in zip(keys, results, strict=True)}, skeleton)
    compared = []
    for key, one in zip(keys, results, strict=True):
        other, share = near[key]
        same = [two.person.name for two in results if two is not one and two.sums & one.sums]
        name = results[int(other)].person.name if other else ""
        compared.append(replace(one, similar_to=name, similarity=share, same_files=tuple(same)))
    return compared
