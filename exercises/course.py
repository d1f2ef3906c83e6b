"""Find, copy and compile the exercises of a course with the layout of p4lang/tutorials.

An exercise is a directory with P4 programs and a topology. Files in its directory ``solution`` replace the
files with the same name. The course itself is never changed: exercises are copied first.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mrclab.exercises.topology import topologies
from mrclab.linux.errors import BadInputError, InputError
from mrclab.p4src.compile import COMPILER, run_p4c

BUILD, SOLUTION = "build", "solution"
STATES = ("as it is", "solved")
_IGNORED = shutil.ignore_patterns(SOLUTION, "pcaps", "logs", "__pycache__", ".git")


class NotCompiledError(InputError):
    """An exercise has no compiled program. The message gives the reason: p4c's first error, or no p4c."""


@dataclass(frozen=True)
class Case:
    """An exercise with one of its topologies. ``topology`` is a path relative to the exercise."""

    directory: Path
    topology: str

    @property
    def name(self) -> str:
        """The name of the exercise."""
        return self.directory.name


def cases_of(course: Path) -> list[Case]:
    """Return the cases of a course, sorted by name.

    Exercises are subdirectories of ``course/exercises``, or of ``course``, that have P4 programs and at least
    one topology. Raise BadInputError if there is no exercise.
    """
    if not course.is_dir():
        raise BadInputError(f"no directory {course}")
    root = course / "exercises" if (course / "exercises").is_dir() else course
    found = [
        Case(directory, topology.relative_to(directory).as_posix())
        for directory in sorted(path for path in root.iterdir() if path.is_dir())
        if _has_programs(directory)
        for topology in topologies(directory)
    ]
    if not found:
        raise BadInputError(
            f"{course} has no exercises: name the folder of a course, such as a copy of p4lang/tutorials"
        )
    return found


def _has_programs(directory: Path) -> bool:
    return any(directory.glob("*.p4")) or (directory / BUILD).is_dir()


def staged(case: Case, solved: bool, target: Path) -> Path:
    """Copy an exercise to a new directory. If ``solved``, use the files of its solution."""
    shutil.copytree(case.directory, target, ignore=_IGNORED)
    solution = case.directory / SOLUTION
    if not solved:
        return target
    if not solution.is_dir():
        raise NotCompiledError("no solution")
    shutil.rmtree(target / BUILD, ignore_errors=True)
    for path in sorted(solution.iterdir()):
        if path.is_dir():
            shutil.copytree(path, target / path.name, ignore=_IGNORED, dirs_exist_ok=True)
        else:
            for place in _places(target, path.name):
                shutil.copy(path, place)
    return target


def _places(target: Path, name: str) -> list[Path]:
    """Return the paths of all files of this name. If there are none, return the path of a new file."""
    return [path for path in target.rglob(name) if path.is_file()] or [target / name]


def compile_all(directory: Path, out: Path, compiler: bool) -> None:
    """Compile a directory's programs into ``out``. If ``compiler`` is false, keep the programs in ``out``.

    Raise NotCompiledError if a program cannot be compiled, or if without a compiler ``out`` has no program.
    """
    sources = sorted(directory.glob("*.p4"))
    if not compiler:
        if not any(out.glob("*.json")):
            raise NotCompiledError(f"no {COMPILER} on PATH, and no compiled program")
        return
    out.mkdir(exist_ok=True)
    for source in sources:
        name = source.stem
        done = run_p4c(source, out / f"{name}.json", out / f"{name}.p4.p4info.txtpb", cwd=directory)
        if done.returncode != 0:
            raise NotCompiledError(first_error(done.stderr.splitlines(), source.name))


def first_error(lines: Sequence[str], source: str) -> str:
    """Return the first error in p4c's messages as one short line."""
    for line in lines:
        if "error" in line:
            return " ".join(line.replace("[--Werror=", "[").split())[-120:]
    return f"p4c cannot compile {source}"
