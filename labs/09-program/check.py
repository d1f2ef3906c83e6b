"""Checks of lab 9: compile the program, and run it with a NIC whose completions come in any order."""

from __future__ import annotations

from pathlib import Path

from mrclab.labs.checks import Checks, Hint, Student
from mrclab.labs.programming import LIMIT_S, Setting, Wrong, nic_of, run, sources_of
from mrclab.labs.sandbox.program import CompileError, Program, ProgramEnd

CHECKS = Checks()
SKELETON = Path(__file__).parent / "start"
SEEDS = (1, 2, 3)


def passes(student: Student, *settings: Setting) -> None:
    """Run the student's program in each setting. Raise Hint if the program makes a mistake."""
    sources = sources_of(SKELETON, student.bytes_of("transfer.c"))
    try:
        with Program(sources, LIMIT_S, student.note, len(settings)) as program:
            for setting in settings:
                run(program, setting, nic_of(setting))
    except CompileError as error:
        raise Hint(f"The compiler refuses transfer.c (warnings count):\n{error}") from None
    except (Wrong, ProgramEnd) as error:
        raise Hint(str(error)) from None
    except (ValueError, TypeError, IndexError):
        raise Hint(
            "Your program writes where the check reads its questions: leave files alone that it did not open."
        ) from None


@CHECKS.add("it compiles", gate=True)
def compiles(student: Student) -> None:
    passes(student)


@CHECKS.add("every message is written to its place")
def places(student: Student) -> None:
    passes(student, Setting(length=8192), Setting(length=9000), Setting(length=300))


@CHECKS.add("the queue is full and never too full")
def depth(student: Student) -> None:
    passes(student, Setting(depth=1), Setting(depth=8, length=300_000))


@CHECKS.add("completions of several queue pairs, in any order")
def any_order(student: Student) -> None:
    passes(student, *(Setting(qps=4, depth=3, length=60_000, seed=seed) for seed in SEEDS))


@CHECKS.add("a queue pair fails")
def one_fails(student: Student) -> None:
    passes(student, *(Setting(qps=3, depth=4, length=60_000, fail={1: 3}, seed=seed) for seed in SEEDS))
    passes(student, Setting(qps=3, depth=4, length=60_000, fail={0: 0, 2: 9}))


@CHECKS.add("all queue pairs fail")
def all_fail(student: Student) -> None:
    passes(student, Setting(qps=2, fail={0: 2, 1: 4}))


@CHECKS.add("the receiver counts messages")
def receives(student: Student) -> None:
    passes(student, Setting(receiving=True, length=3000), Setting(receiving=True, length=400_100))
    passes(student, *(Setting(receiving=True, qps=3, length=90_000, seed=seed) for seed in SEEDS))


@CHECKS.add("a queue pair of the receiver fails")
def receiver_fails(student: Student) -> None:
    passes(
        student, *(Setting(receiving=True, qps=3, length=90_000, fail={1: 5}, seed=seed) for seed in SEEDS)
    )
    passes(student, Setting(receiving=True, qps=2, length=90_000, fail={0: 3, 1: 5}))


@CHECKS.add("the questions are answered")
def answers(student: Student) -> None:
    student.answered(4)
