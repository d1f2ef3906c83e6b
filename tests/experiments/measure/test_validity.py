from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mrclab.experiments.measure.load import Load, Snapshot, ThreadTimes, load_between, take_snapshot
from mrclab.experiments.measure.validity import MAX_BUSY, MAX_WAIT, judge, kept_up

QUIET = Load(10**8, 0.4, 0.0, 0.01, 10**6, "sender", 0, 0.1)


def machine(
    root: Path, *, stat: str, sched: dict[int, str], throttled: int | None = None, pressure: int = 0
) -> Path:
    for tid, text in sched.items():
        task = root / "proc/42/task" / str(tid)
        task.mkdir(parents=True, exist_ok=True)
        (task / "schedstat").write_text(text)
    (root / "proc/pressure").mkdir(parents=True, exist_ok=True)
    (root / "proc/pressure/cpu").write_text(
        f"some avg10=0.00 avg60=0.00 avg300=0.00 total={pressure}\nfull x\n"
    )
    (root / "proc/stat").write_text(f"cpu  {stat}\ncpu0 {stat}\n")
    if throttled is not None:
        (root / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)
        (root / "sys/fs/cgroup/cpu.stat").write_text(
            f"usage_usec 5\nnr_throttled 1\nthrottled_usec {throttled}\n"
        )
    return root


def test_a_snapshot_reads_what_the_kernel_says(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        stat="10 1 5 80 4 2 3 7 99 99",
        sched={42: "500 40 3", 43: "7 8 9"},
        throttled=77,
        pressure=1234,
    )
    shot = take_snapshot({"sender": 42, "gone": 4242}, root)
    assert (shot.busy, shot.steal, shot.total) == (21, 7, 112)
    assert shot.threads == {("sender", 42): ThreadTimes(500, 40), ("sender", 43): ThreadTimes(7, 8)}
    assert (shot.throttled_us, shot.pressure_us) == (77, 1234)


def test_the_load_is_what_happened_between(tmp_path: Path) -> None:
    a = Snapshot(0, 100, 10, 1000, {("s", 1): ThreadTimes(0, 0), ("r", 2): ThreadTimes(0, 0)}, 5, 100)
    threads = {
        ("s", 1): ThreadTimes(30_000_000, 10_000_000),
        ("r", 2): ThreadTimes(9, 9),
        ("new", 3): ThreadTimes(1, 10**9),
    }
    b = Snapshot(10**8, 150, 20, 1100, threads, 9, 10_100)
    load = load_between(a, b)
    assert (load.busy, load.steal) == (0.5, 0.1)
    assert (load.wait, load.wait_ns, load.worst_thread) == (0.25, 10_000_000, "s")
    assert (load.throttled_us, load.pressure) == (4, 0.1)


def test_too_few_ticks_say_nothing() -> None:
    load = load_between(Snapshot(0, 0, 0, 0), Snapshot(1000, 5, 0, 5))
    assert load.busy is None
    assert load.wait is None
    assert judge([load]).valid


def test_what_this_machine_tells_is_read() -> None:
    before = take_snapshot({"me": os.getpid()})
    busy_until = time.process_time_ns() + 60_000_000
    while time.process_time_ns() < busy_until:
        pass
    after = take_snapshot({"me": os.getpid()})
    load = load_between(before, after)
    ran = [
        after.threads[key].run_ns - times.run_ns
        for key, times in before.threads.items()
        if key in after.threads
    ]
    assert max(ran) >= 50_000_000
    assert load.duration_ns >= 60_000_000
    assert load.worst_thread == "me"


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (
            Load(1, MAX_BUSY + 0.01, 0, 0, 0, None, 0, 0),
            "in 1 of 3 trials the CPUs were 96% busy (limit 95%)",
        ),
        (Load(1, 0, 0.2, 0, 0, None, 0, 0), "the hypervisor took 20%"),
        (Load(1, 0, 0, MAX_WAIT + 0.1, 5, "receiver", 0, 0), "receiver waited for a CPU 35% of its time"),
        (Load(1, 0, 0, 0, 0, None, 300, 0), "a cgroup quota stopped us for 300 us"),
    ],
)
def test_each_rule_spoils_a_run_with_its_reason(load: Load, words: str) -> None:
    validity = judge([QUIET, load, QUIET])
    assert not validity.valid
    assert len(validity.reasons) == 1
    assert words in validity.reasons[0]


def test_a_quiet_run_is_valid_and_the_recorder_s_troubles_are_not() -> None:
    assert judge([QUIET], capture_drops={"sender": 0}, clock_change_ns=100).valid
    assert "the capture at the receiver lost 2 packets" in judge([], capture_drops={"receiver": 2}).reasons[0]
    assert "the clock was set" in judge([], clock_change_ns=30_000).reasons[0]
    assert judge([], also=["x"]).reasons == ("x",)
    assert judge([], notes=["n"]).valid


def test_a_process_that_stood_still_spoils_the_trial_and_is_named() -> None:
    a = Snapshot(0, 100, 10, 1000, stopped_ns={"receiver": 5})
    b = Snapshot(10**9, 500, 10, 2000, stopped_ns={"receiver": 5 + 300_000_000, "sender": 20_000_000})
    stopped, quiet = load_between(a, b), load_between(a, replace(b, stopped_ns=a.stopped_ns))
    assert (stopped.stopped, stopped.stopped_ns) == ("receiver", 300_000_000)
    assert not kept_up(stopped)
    assert kept_up(quiet)
    (reason,) = judge([quiet, stopped]).reasons
    assert reason == "in 1 of 2 trials receiver stood still for 300.0 ms, when it should have worked"
