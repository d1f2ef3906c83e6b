"""How the checks of a lab are written.

A lab's ``check.py`` has a module-level ``CHECKS``:

    CHECKS = Checks()

    @CHECKS.add("every EV is used")
    def every_ev(student: Student) -> None:
        policy = student.load("spray.py").RoundRobin(random.Random(1))
        require(len(used) == 16, "Some EVs were never chosen. What do you do with the first one?")

A check that returns has passed. `Hint` ends it and is shown to the student: it names the idea that is
missing, and not the line to write. Anything else that is raised is an error in the student's code.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from mrclab.labs.model import Outcome

GAP = "(your answer)"
"""What stands in a skeleton's page of answers until the student has written one."""


class Hint(Exception):  # noqa: N818
    """What a student should think about next."""


def require(condition: object, hint: str) -> None:
    """Raise a hint unless something is true."""
    if not condition:
        raise Hint(hint)


@dataclass
class Student:
    """A student's folder."""

    folder: Path
    _loaded: dict[str, ModuleType] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        """Return a file of the folder. Raise a hint where it is missing."""
        found = self.folder / name
        require(
            found.is_file(), f"{name} is missing from {self.folder}: 'mrclab lab solution' has an example."
        )
        return found

    def text(self, name: str) -> str:
        """Return the text of a file."""
        return self.path(name).read_text(encoding="utf-8", errors="replace")

    def load(self, name: str) -> Any:
        """Import a Python file of the folder, once, and return the module; its neighbours can be imported."""
        if name not in self._loaded:
            path = self.path(name)
            if str(self.folder) not in sys.path:
                sys.path.insert(0, str(self.folder))
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[path.stem] = module
            spec.loader.exec_module(module)
            self._loaded[name] = module
        return self._loaded[name]

    def values(self, name: str) -> dict[str, Any]:
        """Return the mapping in a YAML file of the folder. Raise a hint where it cannot be read."""
        try:
            found = yaml.safe_load(self.text(name))
        except yaml.YAMLError as error:
            first = " ".join(str(error).split())
            raise Hint(f"{name} is no YAML that can be read: {first}") from None
        require(isinstance(found, dict), f"{name} should have lines of the form 'name: value'.")
        assert isinstance(found, dict)
        return found

    def answered(self, name: str = "answers.md") -> None:
        """Require that every question of a page has an answer.

        A question is a heading ``## 1. ...``; what follows it is the answer.
        """
        missing = unanswered(self.text(name))
        questions = ", ".join(missing)
        require(not missing, f"{name}: no answer yet to {questions}. A sentence or two each will do.")


def unanswered(text: str) -> list[str]:
    """Return the numbers of a page's questions that have no answer."""
    missing = []
    for part in text.split("\n## ")[1:]:
        heading, _, body = part.partition("\n")
        answer = body.replace(GAP, "").strip()
        if len(answer) < 10:
            missing.append(heading.split(".")[0])
    return missing


Check = Callable[[Student], None]


@dataclass(frozen=True)
class Named:
    """A check with its title. Where a ``gate`` fails, what comes after it is not tried."""

    title: str
    run: Check
    gate: bool = False


class Checks:
    """The checks of a lab, in the order in which a student gets to them."""

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


def run_one(check: Named, student: Student) -> Outcome:
    """Run a check and say what became of it. No exception of the student's code gets out, but Ctrl-C."""
    try:
        check.run(student)
    except Hint as hint:
        return Outcome(check.title, False, str(hint).strip())
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Outcome(check.title, False, _explained(error, student.folder))
    return Outcome(check.title, True)


def run_all(checks: Iterable[Named], student: Student, first: int = 0) -> Iterator[Outcome]:
    """Run checks from number ``first`` on; what comes after a gate that failed is not tried."""
    closed = ""
    for number, check in enumerate(checks):
        if number < first:
            continue
        if closed:
            yield not_tried(check.title, closed)
            continue
        outcome = run_one(check, student)
        if check.gate and not outcome.passed:
            closed = check.title
        yield outcome


def not_tried(title: str, before: str) -> Outcome:
    """Return the outcome of a check whose turn has not come."""
    return Outcome(title, False, f"not tried: first '{before}'", tried=False)


def _explained(error: BaseException, folder: Path) -> str:
    """Say where in the student's own files an error came up."""
    if isinstance(error, SyntaxError):
        return f"{Path(error.filename or '').name}, line {error.lineno}: Python cannot read this: {error.msg}"
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(folder)
    ]
    text = " ".join(str(error).split())
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, NotImplementedError):
        what = f"nothing is written here yet{': ' + text if text else ''}"
    if own:
        return f"{Path(own[-1].filename).name}, line {own[-1].lineno}, in {own[-1].name}: {what}"
    return f"the check could not use your code: {what}"
