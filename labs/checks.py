"""The framework in which the checks of a lab are written.

A lab's ``check.py`` has a module-level ``CHECKS``:

    CHECKS = Checks()

    @CHECKS.add("every EV is used")
    def every_ev(student: Student) -> None:
        found = student.load("measures.py").evenness([3, 1])
        require(found == 1.5, "Paths without packets count in the mean, too.")

A check passes if it returns. A check fails if it raises a `Hint`. The student then sees the hint, which names
the missing idea, but not the line to write.

The student's code runs in a separate process and is called over a pipe (`mrclab.labs.sandbox`). Arguments and
results are plain data, so a submission cannot change a check, its values or its outcome.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mrclab.labs.catalogue import Outcome
from mrclab.labs.sandbox import files
from mrclab.labs.sandbox.remote import Gone, RemoteCode, RemoteObject, StudentError, printable
from mrclab.labs.student import Variant, variant_in
from mrclab.linux.errors import InputError

GAP = "(your answer)"
"""The placeholder in a page of answers, which the student replaces by an answer."""
_LEAST_WORDS = 4
_NUMBER = re.compile(r"(?<![\w.])\d{1,12}(?:,\d{3}){0,4}(?:\.\d{1,9})?")
_LONGEST_HINT = 4000
_LIMIT_S = 120.0


class Hint(Exception):  # noqa: N818
    """A hint that a student sees when a check fails: the next thing to think about."""


class NotHere(Exception):  # noqa: N818
    """Raised by a check that cannot be made in a browser. The text is the reason."""


def require(condition: object, hint: str) -> None:
    """Raise Hint unless the condition is true."""
    if not condition:
        raise Hint(hint)


class RemoteModule:
    """A Python file of a student's folder. Its functions are called in a process without rights."""

    def __init__(self, code: RemoteCode, file: str) -> None:
        self._code = code
        self._file = file

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return the function ``name`` of the student's file. Its arguments and its result are plain data."""
        return lambda *args: self._code.function(self._file, name, args)

    def with_arrays(self, name: str, *args: Any) -> Any:
        """Call a function of the student's file, with each list in the arguments made a numpy array."""
        return self._code.function(self._file, name, args, arrays=True)

    def value(self, name: str) -> Any:
        """Return the value of ``name`` in the student's file, as plain data."""
        return self._code.value(self._file, name)

    def make(self, name: str, adapter: str, *args: Any) -> RemoteObject:
        """Make an object of the student's class ``name``, in an adapter of `mrclab.labs.sandbox.child`."""
        return self._code.make(self._file, name, adapter, args)


class Student:
    """A student's folder. This process does not run the student's code and does not follow symbolic links."""

    def __init__(
        self,
        folder: Path,
        report: Callable[[str], None] = lambda missing: None,
        variant: Variant | None = None,
        code: type[RemoteCode] = RemoteCode,
    ) -> None:
        """Use a folder. Without ``variant``, draw the variant from the student's number in the folder.

        ``report`` is called with each limit that the sandbox lacks; ``code`` is the class that runs the code.
        """
        self.folder = folder
        self.variant = variant_in(folder) if variant is None else variant
        self.code = code(folder, self.note)
        self._report: Callable[[str], None] | None = report

    def note(self, missing: str) -> None:
        """Report the limits that the sandbox lacks on this machine. Only the first call has an effect."""
        report, self._report = self._report, None
        if report is not None:
            report(missing)

    def bytes_of(self, name: str) -> bytes:
        """Return the content of a file of the folder. Raise a hint if it is missing, a link or too large."""
        try:
            return files.read(self.folder / name)
        except InputError as error:
            raise Hint(f"{error}.") from None
        except OSError:
            raise Hint(f"{name} is missing from {self.folder}, or cannot be read.") from None

    def text(self, name: str) -> str:
        """Return the text of a file."""
        return self.bytes_of(name).decode("utf-8", errors="replace")

    def load(self, name: str) -> RemoteModule:
        """Return a Python file of the folder. The file can import the other files of the folder."""
        self.bytes_of(name)
        return RemoteModule(self.code, name)

    def values(self, name: str) -> dict[str, Any]:
        """Return the mapping in a YAML file of the folder. Raise Hint if the file is invalid."""
        text = self.text(name)
        try:
            if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
                raise Hint(f"{name} has an alias (*name): write the value itself.")
            found = yaml.safe_load(text)
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            first = " ".join(str(error).split())
            raise Hint(f"{name} is no YAML that can be read: {first}") from None
        require(isinstance(found, dict), f"{name} should have lines of the form 'name: value'.")
        assert isinstance(found, dict)
        return found

    def answered(self, questions: int, name: str = "answers.md") -> None:
        """Require that a page has the questions from 1 on, this many, and an answer to each.

        A question is a heading ``## 1. ...``. The text below it is the answer.
        """
        text = self.text(name)
        wanted = map(str, range(1, questions + 1))
        lost = ", ".join(number for number in wanted if number not in answers_of(text))
        require(not lost, f"{name} has no heading of question {lost}, such as '## 1. Why ...?': keep it.")
        missing = ", ".join(unanswered(text))
        require(not missing, f"{name}: no answer yet to {missing}. A sentence or two each will do.")
        given = [" ".join(answer.lower().split()) for answer in answers_of(text).values()]
        require(len(set(given)) == len(given), f"{name}: two questions have the same answer.")

    def told(self, question: int, what: str, value: float, within: float) -> None:
        """Require that the answer to a question has a number from the student's own run.

        The number may differ from ``value`` by ``within``. The hint describes the number by ``what`` and does
        not give its value.
        """
        answer = answers_of(self.text("answers.md")).get(str(question), "")
        require(
            any(abs(number - value) <= within for number in numbers_in(answer)),
            f"answers.md, question {question}: the answer should have a number of your own run: {what}. "
            "No number in it is that one.",
        )


def numbers_in(text: str) -> list[float]:
    """Return the numbers in a text. ``1,234.5`` is one number, and ``3 %`` gives 3."""
    return [float(found.replace(",", "")) for found in _NUMBER.findall(text)]


def answers_of(text: str) -> dict[str, str]:
    """Return the answers of a page by the numbers of its questions. An unanswered question has ""."""
    found = {}
    for part in f"\n{text}".split("\n## ")[1:]:
        heading, _, body = part.partition("\n")
        found[heading.split(".")[0]] = body.replace(GAP, "").strip()
    return found


def unanswered(text: str) -> list[str]:
    """Return the numbers of the questions whose answers have fewer than four different words."""
    return [
        number
        for number, answer in answers_of(text).items()
        if len(set(answer.lower().split())) < _LEAST_WORDS
    ]


Check = Callable[[Student], Mapping[str, float] | None]
"""A check of a student's work. A part of a score returns its results by name (`mrclab.labs.judge`)."""


@dataclass(frozen=True)
class Named:
    """A check with its title. If a check with ``gate`` fails, the checks after it are not tried."""

    title: str
    run: Check
    gate: bool = False


class Checks:
    """The checks of a lab, in the order in which they are run."""

    def __init__(self) -> None:
        self._checks: list[Named] = []

    def add(self, title: str, *, gate: bool = False) -> Callable[[Check], Check]:
        """Return a decorator that adds a check."""

        def added(run: Check) -> Check:
            self._checks.append(Named(title, run, gate))
            return run

        return added

    def __iter__(self) -> Iterator[Named]:
        return iter(self._checks)

    def __len__(self) -> int:
        return len(self._checks)


def run_one(check: Named, student: Student, limit_s: float = _LIMIT_S) -> Outcome:
    """Run a check and return its outcome. The student's code has ``limit_s`` seconds for the whole check."""
    student.code.begin(limit_s)
    try:
        measured = check.run(student) or {}
    except (Hint, StudentError, Gone) as hint:
        return Outcome(check.title, False, printable(str(hint), lines=True).strip()[:_LONGEST_HINT])
    except NotHere as why:
        return Outcome(check.title, False, str(why), tried=False)
    except KeyboardInterrupt:
        raise
    except Exception as error:
        words = " ".join(printable(f"{type(error).__name__}: {error}").split())[:_LONGEST_HINT]
        forgotten = "None: is a return missing? " if "NoneType" in words else ""
        return Outcome(
            check.title, False, f"the check could not use what your code returned: {forgotten}{words}"
        )
    finally:
        student.code.end_check()
    return Outcome(check.title, True, measured=measured)


def run_all(
    checks: Iterable[Named], student: Student, first: int = 0, limit_s: float = _LIMIT_S
) -> Iterator[Outcome]:
    """Run the checks from number ``first`` on. If a check with ``gate`` fails, do not run later checks."""
    closed = ""
    for number, check in enumerate(checks):
        if number < first:
            continue
        if closed:
            yield not_tried(check.title, closed)
            continue
        outcome = run_one(check, student, limit_s)
        if check.gate and not outcome.passed:
            closed = check.title
        yield outcome


def not_tried(title: str, before: str) -> Outcome:
    """Return the outcome of a check that was not tried because ``before`` has to pass first."""
    return Outcome(title, False, f"not tried: first '{before}'", tried=False)
