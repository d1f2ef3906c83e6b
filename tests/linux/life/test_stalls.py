"""A process that stands still is noticed, whoever stopped it."""

from __future__ import annotations

import os
import signal
import subprocess

from mrclab.linux.life.stalls import GAP_NS, OWN, StallWatch, state_of

MS = 1_000_000


def test_time_counts_for_who_stands_still_when_it_is_looked_at() -> None:
    now, states = [0], {1: "S", 2: "R"}
    watch = StallWatch({"sender": 1, "receiver": 2}, lambda: now[0], lambda pid: states.get(pid, ""))
    for at_ms, state in ((10, "S"), (20, "T"), (30, "t"), (40, "R"), (50, "T")):
        now[0], states[1] = at_ms * MS, state
        watch.look()
    assert watch.stopped_ns() == {"sender": 30 * MS}


def test_a_pause_of_the_watch_itself_is_a_stall_of_its_process() -> None:
    now = [0]
    watch = StallWatch({}, lambda: now[0])
    now[0] = GAP_NS
    watch.look()
    assert watch.stopped_ns() == {}
    now[0] += 2 * GAP_NS
    assert watch.stopped_ns() == {OWN: 2 * GAP_NS}


def test_a_stopped_process_is_seen_and_one_that_waits_is_not() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        try:
            with StallWatch({"child": child.pid}) as watch:
                assert "child" not in watch.stopped_ns()
                os.kill(child.pid, signal.SIGSTOP)
                os.waitpid(child.pid, os.WUNTRACED)
                assert state_of(child.pid) == "T"
                assert watch.stopped_ns()["child"] > 0
        finally:
            child.kill()
    assert state_of(child.pid) == ""
