"""If ``mrclab up`` is interrupted at any moment of its start, it takes everything down again."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.support.command import Mrclab

pytestmark = [pytest.mark.root, pytest.mark.slow]

PATIENCE_S = 60
SAID = {
    signal.SIGINT: "mrclab: interrupted\n",
    signal.SIGTERM: "mrclab: ended by SIGTERM\n",
    signal.SIGHUP: "mrclab: ended by SIGHUP\n",
}
Moment = Callable[[Mrclab, "subprocess.Popen[str]"], None]


def as_soon_as_there_is_a_record(mrclab: Mrclab, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not mrclab.names.state_dir.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        signal.sigtimedwait([], 0.01)


def once_it_says(words: str) -> Moment:
    def moment(_: Mrclab, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        assert any(words in line for line in process.stdout), "it ended without these words"

    return moment


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        (as_soon_as_there_is_a_record, signal.SIGTERM),
        (once_it_says(" hosts ("), signal.SIGINT),
        (once_it_says(" switches on "), signal.SIGHUP),
    ],
    ids=["record", "namespaces", "switches"],
)
def test_a_signal_while_it_starts_leaves_nothing(
    mrclab: Mrclab, machine: None, moment: Moment, number: signal.Signals
) -> None:
    words = ("up", "--topology", "lab", "--target", "ebpf")
    environment, pipe = mrclab.environment | {"PYTHONUNBUFFERED": "1"}, subprocess.PIPE
    with subprocess.Popen(
        mrclab.command(*words), env=environment, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            moment(mrclab, process)
            process.send_signal(number)
            process.send_signal(number)  # users may press Ctrl-C again and again
            _, wrong = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    if process.returncode == 0:  # the signal came too late: the testbed is up
        mrclab.ok("down")
    else:
        assert (process.returncode, wrong) == (128 + number, SAID[number])
    assert "nothing to clean" in mrclab.ok("clean")
