"""A large fabric is programmed a few switches at a time. Otherwise, calls to switches would time out."""

import asyncio
from typing import Any

import pytest

from mrclab.controller import fabric as module
from mrclab.controller.fabric import AT_ONCE, FabricController
from mrclab.switches.spec import RunningSwitch
from mrclab.topologies import load_fabric


@pytest.mark.slow
def test_no_more_switches_are_asked_at_a_time_than_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = load_fabric("wide")
    running = [RunningSwitch(s.name, s.device_id, "127.0.0.1:1") for s in wide.switches]
    now = most = 0

    async def read_all(*_: Any) -> list[Any]:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        raise OSError("nothing listens here")

    async def story() -> None:
        controller = FabricController(wide, running)
        switches = controller.switches.values()
        await asyncio.gather(*(controller._ready(switch) for switch in switches))
        with pytest.raises(Exception, match="nothing listens"):
            await controller.programmed(timeout_s=0)

    monkeypatch.setattr(module, "read_all", read_all)
    asyncio.run(story())
    assert len(running) > AT_ONCE == most
