"""The controller with our own target: it writes entries, finds drift, and writes again after a restart."""

import asyncio
import os
import signal
import time

import finsy as fy
import pytest

from mrclab.controller.entries import Entry, switch_entries
from mrclab.controller.fabric import FabricController, ProgrammingError
from mrclab.p4src.contract import MY_SID_TABLE
from mrclab.switches.spec import RunningSwitch
from mrclab.topologies import Fabric, build_fabric
from tests.support.switch_process import PATIENCE_S, free_port, switch_process

pytestmark = [pytest.mark.root, pytest.mark.parallel]

ONE_RACK = "name: one\nplanes: 1\nt0: 1\nt1: 0\nhosts: 2\n"


@pytest.fixture
def fabric() -> Fabric:
    return build_fabric(ONE_RACK, "one.yaml")


async def entries_of(switch: fy.Switch) -> list[Entry]:
    from mrclab.controller.telemetry import read_all

    return [Entry.from_p4(e) for e in await read_all(switch, [fy.P4TableEntry(MY_SID_TABLE)])]


def test_programs_verifies_and_reports_drift(fabric: Fabric) -> None:
    async def story(port: int) -> None:
        running = [RunningSwitch("p0-t0-0", 1, f"127.0.0.1:{port}")]
        async with FabricController(fabric, running) as controller:
            await controller.programmed(timeout_s=PATIENCE_S)
            assert await controller.verify() == ()
            wanted = switch_entries(fabric, fabric.switch("p0-t0-0"))
            switch = controller.switches["p0-t0-0"]
            assert await entries_of(switch) == [e for e in wanted if e.table == MY_SID_TABLE]
            stranger = Entry(MY_SID_TABLE, "fcbb:bb00:9999::/48", "un")
            await switch.write([+stranger.to_p4(), -wanted[0].to_p4()])
            (drift,) = await controller.verify()
            assert drift.switch == "p0-t0-0"
            assert drift.unexpected == (stranger,)
            assert drift.missing == (wanted[0],)

    port = free_port()
    with switch_process(port):
        asyncio.run(story(port))


@pytest.mark.slow  # finsy waits 10 s before it reconnects to a switch that ended within 2 s
def test_a_switch_that_restarts_is_programmed_again(fabric: Fabric) -> None:
    async def story(port: int) -> None:
        running = [RunningSwitch("p0-t0-0", 1, f"127.0.0.1:{port}")]
        async with FabricController(fabric, running) as controller:
            with switch_process(port) as process:
                await controller.programmed(timeout_s=PATIENCE_S)
                os.kill(process.pid, signal.SIGKILL)
            with switch_process(port):
                await controller.programmed(times=2, timeout_s=PATIENCE_S)
                assert await controller.verify() == ()

    asyncio.run(story(free_port()))


def test_a_new_controller_leaves_what_is_right_and_mends_the_rest(fabric: Fabric) -> None:
    async def story(port: int) -> None:
        running = [RunningSwitch("p0-t0-0", 1, f"127.0.0.1:{port}")]
        stranger = Entry(MY_SID_TABLE, "fcbb:bb00:9999::/48", "un")
        async with FabricController(fabric, running) as first:
            await first.programmed(timeout_s=PATIENCE_S)
            await first.switches["p0-t0-0"].write([+stranger.to_p4()])
        async with FabricController(fabric, running) as second:
            await second.programmed(timeout_s=PATIENCE_S)
            assert await second.verify() == ()

    port = free_port()
    with switch_process(port):
        asyncio.run(story(port))


def test_a_switch_that_never_answers_is_named(fabric: Fabric) -> None:
    async def story() -> None:
        running = [RunningSwitch("p0-t0-0", 1, f"127.0.0.1:{free_port()}")]
        async with FabricController(fabric, running) as controller:
            started = time.monotonic()
            with pytest.raises(ProgrammingError, match=r"1 of 1 switches .* p0-t0-0"):
                await controller.programmed(timeout_s=0.5)
            assert time.monotonic() - started < PATIENCE_S

    asyncio.run(story())
