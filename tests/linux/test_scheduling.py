"""A NIC's process works even if it has no right to run before other processes."""

import cmath
import os
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mrclab.linux import scheduling as schedule


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[object]:
    """Imitate a kernel that refuses real-time priority, as in a container's cgroup. Return the calls.

    The imitation also refuses to keep CPUs awake. Otherwise pytest's process would keep CPUs awake in
    all later tests.
    """
    monkeypatch.setattr(schedule, "WAKE_UP_LIMIT", tmp_path / "none")
    calls: list[object] = []

    def set_scheduler(pid: int, policy: int, param: os.sched_param) -> None:
        if policy & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR:
            raise PermissionError(1, "Operation not permitted")
        calls.append(policy)

    monkeypatch.setattr(os, "sched_setscheduler", set_scheduler)
    monkeypatch.setattr(os, "setpriority", lambda *args: calls.append(args))
    return calls


def test_without_real_time_it_takes_the_largest_share(asked: list[object]) -> None:
    refused = schedule.take_cpu(None)
    assert refused is not None
    assert "nice -20 instead" in refused
    assert asked == [os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, (os.PRIO_PROCESS, 0, -20)]


def test_without_that_either_it_says_so(asked: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "setpriority", refuse)
    refused = schedule.take_cpu(None)
    assert refused is not None
    assert "nor a higher one" in refused


def test_an_ordinary_process_asks_for_nothing(asked: list[object]) -> None:
    assert schedule.take_cpu(None, realtime=False) is None
    assert asked == []


def wake_up_limit_us() -> int:
    """Return the limit that the kernel uses now, for all processes."""
    descriptor = os.open(schedule.WAKE_UP_LIMIT, os.O_RDONLY)
    try:
        return int(struct.unpack("=i", os.read(descriptor, 4))[0])
    finally:
        os.close(descriptor)


@pytest.mark.root  # tests as root run alone: no agent of another test keeps the CPUs awake
def test_cpus_are_kept_awake_while_the_process_lives() -> None:
    if not schedule.may_keep_cpus_awake():
        pytest.skip(f"this machine has no {schedule.WAKE_UP_LIMIT} that we may write to")
    before = wake_up_limit_us()
    code = "from mrclab.linux.scheduling import take_cpu; take_cpu(None); print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        assert agent.stdout.readline() == "ready\n"
        assert wake_up_limit_us() == 0
        agent.stdin.write("\n")
    assert wake_up_limit_us() == before


def test_where_cpus_cannot_be_kept_awake_nothing_breaks(asked: list[object]) -> None:
    assert not schedule.may_keep_cpus_awake()
    schedule.take_cpu(None)


def test_going_first_is_asked_for_or_refused(asked: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    assert schedule.go_before_ordinary()
    assert asked == [(os.PRIO_PROCESS, 0, -20)]

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "setpriority", refuse)
    assert not schedule.go_before_ordinary()


def test_children_go_first_and_their_parent_as_before() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with schedule.ahead_of_ordinary():
        inside = os.getpriority(os.PRIO_PROCESS, 0)
    assert inside in (schedule.MOST_NICE, before)  # if the change is not allowed, the value stays
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_a_chosen_moment_comes_after_the_wait_and_leaves_the_thread_as_it_was() -> None:
    usable = os.sched_getaffinity(0)
    policy = os.sched_getscheduler(0)
    cpu = max(usable)
    began = time.monotonic_ns()
    with schedule.at_its_moment(2_000_000, cpu):
        assert time.monotonic_ns() - began >= 2_000_000
        assert os.sched_getaffinity(0) == {cpu}
    assert os.sched_getaffinity(0) == usable
    assert os.sched_getscheduler(0) == policy


def test_moments_are_drawn_between_their_bounds() -> None:
    waits = {schedule.chosen_wait_ns(random.Random(seed)) for seed in range(50)}
    assert len(waits) > 40
    assert 2 * schedule.LEAST_WAIT_NS <= min(waits) <= max(waits) < 2 * schedule.MOST_WAIT_NS


def test_only_the_first_of_several_changes_at_one_moment_waits_for_a_drawn_time() -> None:
    rng = random.Random(1)
    waits = [schedule.chosen_wait_ns(rng, since) for since in (None, 1_000_000, schedule.TOGETHER_NS - 1)]
    assert waits[0] >= 2 * schedule.LEAST_WAIT_NS
    assert waits[1:] == [schedule.LEAST_WAIT_NS] * 2
    assert schedule.chosen_wait_ns(rng, schedule.TOGETHER_NS) >= 2 * schedule.LEAST_WAIT_NS


@pytest.mark.parametrize("period_ns", [300_000, 400_000, 575_000, 680_000])
def test_moments_prefer_no_part_of_a_burst(period_ns: int) -> None:
    rng = random.Random(1)
    turns = [schedule.chosen_wait_ns(rng) / period_ns for _ in range(10_000)]
    assert abs(sum(cmath.exp(2j * cmath.pi * turn) for turn in turns)) / len(turns) < 0.03


def test_work_beside_agents_goes_to_the_last_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert schedule.beside_agents() == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert schedule.beside_agents() is None
