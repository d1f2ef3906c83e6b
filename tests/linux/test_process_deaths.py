"""A death is noticed when a process stops running, and reported once, with the process's last output."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from mrclab.linux.process_watch import DeathWatch, wait_exiting
from mrclab.linux.processes import Child


def sleeper() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def test_a_death_is_told_once_with_its_moment() -> None:
    with sleeper() as one, sleeper() as other, DeathWatch({"one": one.pid, "other": other.pid}) as watch:
        assert watch.wait(0.02) is None
        before = time.monotonic_ns()
        one.kill()
        assert wait_exiting(one.pid, 60)
        after = time.monotonic_ns()
        death = watch.wait(60)
        assert death is not None
        assert death.name == "one"
        assert death.t_before_ns <= after
        assert death.t_after_ns >= before
        assert death.t_before_ns < death.t_after_ns
        assert watch.wait(0.02) is None
        other.kill()


def test_what_was_started_later_can_be_watched_too() -> None:
    with sleeper() as late, DeathWatch({}) as watch:
        watch.add("late", late.pid)
        late.communicate(b"\n")
        death = watch.wait(60)
        assert death is not None
        assert death.name == "late"


def test_a_process_that_goes_on_is_not_taken_for_dead() -> None:
    with sleeper() as alive:
        assert not wait_exiting(alive.pid, 0.02)
        alive.kill()
        assert wait_exiting(alive.pid, 60)


OLD = "12:00 ERROR of a start before\n12:00 INFO of a start before\n"


@pytest.mark.parametrize(
    ("said", "last"),
    [
        ("12:01 INFO starting\ncannot listen\n12:01 INFO stopping\n", "cannot listen"),
        ("12:01 INFO starting\n", "it said nothing"),
        ("", "it said nothing"),
    ],
)
def test_the_last_words_of_a_process_are_its_own_and_no_report_that_all_is_well(
    tmp_path: Path, said: str, last: str
) -> None:
    """If a process dies without a message, the report must not quote the log of an earlier start."""
    log = tmp_path / "log"
    log.write_text(OLD)
    child = Child([sys.executable, "-c", f"import sys; sys.stderr.write({said!r}); sys.exit(4)"], log)
    assert child.why_ended(60) == f"ended with exit code 4 ({last}; see {log})"
    assert log.read_text() == OLD + said
