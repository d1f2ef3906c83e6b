"""A stopped process is noticed, whoever stopped it."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from mrclab.linux import process_watch
from mrclab.linux.process_watch import GAP_NS, OWN, StallWatch, state_of

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


def test_a_process_in_a_frozen_cgroup_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"cgroup {tmp_path}/v1 cgroup rw,freezer 0 0\ncgroup2 {tmp_path}/v2 cgroup2 rw 0 0\n")
    monkeypatch.setattr(process_watch, "_MOUNTS", mounts)
    process_watch._mounted.cache_clear()
    for path, text in {
        "v1/box/freezer.state": "FROZEN\n",
        "v1/free/freezer.state": "THAWED\n",
        "v2/box/cgroup.events": "populated 1\nfrozen 1\n",
        "v2/free/cgroup.events": "populated 1\nfrozen 0\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert process_watch.frozen("6:freezer:/box\n0::/\n")
    assert process_watch.frozen("6:freezer:/free\n0::/box\n")
    assert not process_watch.frozen("6:freezer:/free\n1:cpu:/box\n0::/free\n")
    assert not process_watch.frozen("6:freezer:/\n0::/\n")  # the root cgroup has no such files
    process_watch._mounted.cache_clear()
