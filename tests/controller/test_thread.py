"""If a switch's process has ended, no method of the controller waits for this switch."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from mrclab.controller.fabric import ControllerThread
from mrclab.linux.errors import SwitchError
from mrclab.topologies import load_fabric

WHY = "the switch server (process 7) was ended by SIGKILL"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("fails", [False, True])
def test_a_death_ends_the_waiting_with_its_reason(fails: bool) -> None:
    """If a server is killed during programming, the controller must not wait for its timeout of 120 s."""

    async def never() -> None:
        if fails:
            raise grpc.RpcError("Connection reset by peer")
        await asyncio.Event().wait()

    ended: list[str] = []
    controller = ControllerThread(load_fabric("tiny"), (), ended=lambda: ended[0] if ended else None)
    controller.start()
    try:
        ended.append(WHY)
        with pytest.raises(SwitchError, match=r"process 7\) was ended by SIGKILL"):
            controller._call(never())
    finally:
        controller.stop()


def test_an_answer_and_an_error_of_a_living_switch_pass() -> None:
    async def answer() -> int:
        return 5

    async def late() -> None:
        raise TimeoutError("too late")

    controller = ControllerThread(load_fabric("tiny"), ())
    controller.start()
    try:
        assert controller._call(answer()) == 5
        with pytest.raises(TimeoutError, match="too late"):
            controller._call(late())
    finally:
        controller.stop()
