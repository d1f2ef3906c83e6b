"""A process runs before other processes for a while, if it has the right to do so."""

import os
import threading

import pytest

from mrclab.linux.scheduling import before_others


@pytest.mark.root
def test_only_the_calling_thread_goes_before_others_and_only_within() -> None:
    found: list[int] = []

    def look() -> None:
        found.append(os.sched_getscheduler(0))

    with before_others():
        if os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_OTHER:
            pytest.skip("no real-time priority here, not even for root")
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    look()
    assert [policy & ~os.SCHED_RESET_ON_FORK for policy in found] == [os.SCHED_OTHER] * 2


def test_without_the_right_to_it_all_goes_on_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with before_others():
        pass
