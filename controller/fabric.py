"""Program all switches of a fabric, and program a switch again if it restarts.

There is one finsy Switch for each device. When the stream to a switch is established again, the switch is
read, and only missing entries are written. `ControllerThread` is for synchronous callers: its event loop runs
in a thread.

This module sets two private constants of finsy, because finsy has no options for these times. If a connection
fails within 2 s, finsy waits ten seconds before it connects again. In this testbed, where switches often end
and boot, ten seconds are too long. finsy also waits at most ten seconds for an answer. On a machine with few
CPUs, hundreds of switches need more time to answer. ``tests/controller/test_finsy_retry.py`` checks that
finsy reads these constants.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

import finsy as fy
import finsy.p4client
import finsy.switch

from mrclab.controller.ecmp import EcmpRoutes
from mrclab.controller.entries import KEY_FIELDS, Drift, Entry, find_drift, switch_entries
from mrclab.controller.pipeline import Pipeline, shipped_pipeline
from mrclab.controller.telemetry import SwitchCounters, read_all, read_counters
from mrclab.linux.errors import MrclabError, SwitchError
from mrclab.switches.spec import RunningSwitch
from mrclab.topologies import Fabric

RETRY_S = 0.1
ANSWER_S = 60.0


def reconnect_soon() -> None:
    """Let finsy wait ``RETRY_S`` before it connects to a lost switch again."""
    finsy.switch._FAIL_THROTTLE_SECS = RETRY_S


def answer_late() -> None:
    """Let finsy wait up to ``ANSWER_S`` for an answer. If a switch ends, finsy still notices this at once."""
    finsy.p4client._DEFAULT_RPC_TIMEOUT = ANSWER_S


LOGGER = logging.getLogger(__name__)
STATIC_TABLES = tuple(KEY_FIELDS)
AT_ONCE = 16
"""The number of switches that are read and written at the same time. finsy limits the time of each call. If a
busy machine read all switches of a large fabric at once, the last answer would be too late."""


class ProgrammingError(MrclabError):
    """A switch could not be programmed, or does not have its entries."""


class FabricController:
    """The controller of one fabric; an asynchronous context manager.

    ``programmings`` has the number of times that each switch was programmed and verified. The number is above
    1 for a switch that restarted. ``ecmp`` has the routes for plain IPv6, if they are installed.
    """

    def __init__(
        self, fabric: Fabric, switches: Sequence[RunningSwitch], pipeline: Pipeline | None = None
    ) -> None:
        self.fabric = fabric
        self.programmings: dict[str, int] = {}
        self._wanted = {s.name: switch_entries(fabric, s) for s in fabric.switches}
        self._failures: dict[str, Exception] = {}
        self._changed = asyncio.Condition()
        self._turns = asyncio.Semaphore(AT_ONCE)
        pipeline = pipeline or shipped_pipeline()
        reconnect_soon()
        answer_late()
        self._controller = fy.Controller(
            fy.Switch(
                s.name,
                s.grpc_address,
                fy.SwitchOptions(
                    p4info=pipeline.p4info,
                    p4blob=pipeline.json,
                    device_id=s.device_id,
                    ready_handler=self._ready,
                ),
            )
            for s in switches
        )
        self.ecmp = EcmpRoutes(fabric, {switch.name: switch for switch in self._controller})

    async def __aenter__(self) -> FabricController:
        await self._controller.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._controller.__aexit__(kind, error, trace)

    @property
    def switches(self) -> Mapping[str, fy.Switch]:
        """Return finsy's object of each switch, by name."""
        return {switch.name: switch for switch in self._controller}

    async def programmed(
        self, *, times: int = 1, timeout_s: float = 60, only: Sequence[str] | None = None
    ) -> None:
        """Wait until each switch was programmed and verified at least ``times`` times.

        With ``only``, wait only for these switches. Raise ProgrammingError if a switch fails, or after
        ``timeout_s`` with the names of the late switches.
        """
        names = [switch.name for switch in self._controller] if only is None else list(only)

        def failed() -> dict[str, Exception]:
            return {name: error for name, error in self._failures.items() if only is None or name in names}

        def done() -> bool:
            return bool(failed()) or all(self.programmings.get(n, 0) >= times for n in names)

        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(done)
        except TimeoutError:
            late = [n for n in names if self.programmings.get(n, 0) < times]
            raise ProgrammingError(
                f"{len(late)} of {len(names)} switches were not programmed within {timeout_s:g} s: "
                + ", ".join(late[:5])
            ) from None
        for name, error in failed().items():
            raise ProgrammingError(f"{name}: {error}") from error

    async def verify(self) -> tuple[Drift, ...]:
        """Read all switches and return those with wrong or missing entries.

        A switch that does not answer counts as empty.
        """
        drifts = await asyncio.gather(*(self._drift_if_up(switch) for switch in self._controller))
        return tuple(drift for drift in drifts if drift)

    async def _drift_if_up(self, switch: fy.Switch) -> Drift:
        try:
            if switch.is_up:
                async with self._turns:
                    return await self._drift(switch)
        except fy.P4ClientError as error:
            if error.code is not fy.GRPCStatusCode.UNAVAILABLE:
                raise
        return Drift(switch.name, missing=self._wanted[switch.name])

    async def _ready(self, switch: fy.Switch) -> None:
        try:
            async with self._turns:
                await self._program(switch)
        except Exception as error:
            LOGGER.exception("programming %s failed", switch.name)
            self._failures[switch.name] = error
        else:
            self._failures.pop(switch.name, None)
            self.programmings[switch.name] = self.programmings.get(switch.name, 0) + 1
        async with self._changed:
            self._changed.notify_all()

    async def _program(self, switch: fy.Switch) -> None:
        drift = await self._drift(switch)
        if drift:
            await switch.write(
                [-e.to_p4() for e in drift.unexpected]
                + [+e.to_p4() for e in drift.missing]
                + [~e.to_p4() for e in drift.changed]
            )
            left = await self._drift(switch)
            if left:
                raise ProgrammingError(f"does not hold what was written: {left}")
        if self.ecmp.installed:
            await self.ecmp.install_at(switch)

    async def _drift(self, switch: fy.Switch) -> Drift:
        found = [
            Entry.from_p4(entry)
            for entry in await read_all(switch, [fy.P4TableEntry(table) for table in STATIC_TABLES])
            if not entry.is_default_action
        ]
        return find_drift(switch.name, self._wanted[switch.name], tuple(found))


T = TypeVar("T")
# While the controller waits for a switch's answer, it checks the switch's process at this interval.
LOOK_S = 0.25
STOP_TIMEOUT_S = 10.0


class ControllerThread:
    """Run a FabricController in a thread. Only one other thread may call the methods.

    The thread inherits the network namespace of the caller of `start`. The caller must be in the switches'
    namespace.
    """

    def __init__(
        self,
        fabric: Fabric,
        switches: Sequence[RunningSwitch],
        pipeline: Pipeline | None = None,
        ended: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Store the arguments. If ``ended`` reports the end of a switch process, all methods stop waiting."""
        self._fabric = fabric
        self._switches = switches
        self._pipeline = pipeline
        self._ended = ended
        self._ready: Future[FabricController] = Future()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._main, name="controller", daemon=True)

    def start(self) -> None:
        """Connect to all switches and start to program them. `programmed` waits until this is done."""
        self._thread.start()
        self._ready.result()

    def stop(self) -> None:
        """Disconnect from all switches. The switches keep their entries."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(STOP_TIMEOUT_S)

    def programmed(self, *, times: int = 1, timeout_s: float = 60) -> None:
        """Wait until each switch was programmed at least ``times`` times. See FabricController.programmed."""
        self._call(self._ready.result().programmed(times=times, timeout_s=timeout_s))

    def programmed_again(self, switch: str, *, times: int, timeout_s: float = 60) -> None:
        """Wait until a switch was programmed at least ``times`` times. See FabricController.programmed."""
        work = self._ready.result().programmed(times=times, timeout_s=timeout_s, only=[switch])
        self._call(work)

    def install_ecmp(self) -> None:
        """Let all switches also route plain IPv6, by a hash of the flow. See mrclab.controller.ecmp."""
        self._call(self._ready.result().ecmp.install())

    def install_structured(self) -> None:
        """Let all switches also route plain IPv6, by structured EVs. See mrclab.controller.ecmp."""
        self._call(self._ready.result().ecmp.install(structured=True))

    def withdraw(self, a: str, b: str) -> None:
        """Remove a link from the ECMP routes. See EcmpRoutes.withdraw."""
        self._call(self._ready.result().ecmp.withdraw(a, b))

    def restore(self, a: str, b: str) -> None:
        """Restore a link in the ECMP routes. See EcmpRoutes.restore."""
        self._call(self._ready.result().ecmp.restore(a, b))

    def verify(self) -> tuple[Drift, ...]:
        """Read all switches and return those with wrong or missing entries. See FabricController.verify."""
        return self._call(self._ready.result().verify())

    @property
    def programmings(self) -> Mapping[str, int]:
        """The number of times that each switch was programmed."""
        return dict(self._ready.result().programmings)

    @property
    def election_ids(self) -> Mapping[str, int]:
        """The election id of this controller as the primary, for each switch."""
        return {name: switch.election_id for name, switch in self._ready.result().switches.items()}

    def counters(self, only: str | None = None) -> Mapping[str, SwitchCounters]:
        """Return the counters by switch name: of all switches that answer, or of the switch ``only``."""
        return self._call(self._counters(self._ready.result(), only))

    async def _counters(self, controller: FabricController, only: str | None) -> Mapping[str, SwitchCounters]:
        up = [s for s in controller.switches.values() if s.is_up and only in (None, s.name)]
        found = await asyncio.gather(*(read_counters(s, self._fabric.switch(s.name)) for s in up))
        return {counters.switch: counters for counters in found}

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        answer = asyncio.run_coroutine_threadsafe(work, self._loop)
        while True:
            try:
                return answer.result(LOOK_S)
            except TimeoutError:
                if answer.done():
                    return answer.result()
                if why := self._ended():
                    answer.cancel()
                    raise SwitchError(why) from None
            except Exception as error:
                if why := self._ended():
                    raise SwitchError(why) from error
                raise

    def _main(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            async with FabricController(self._fabric, self._switches, self._pipeline) as controller:
                self._ready.set_result(controller)
                await self._stop.wait()
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)
