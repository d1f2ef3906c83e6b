"""Programs every switch of a fabric concurrently, once, and keeps watch that it stays so.

One finsy Switch per device; the work of each is tied to its stream, so that a switch that restarts is
programmed again as soon as it answers. Nothing is written that reading back shows to be there already.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from types import TracebackType

import finsy as fy

from mrclab.controller.ecmp import EcmpRoutes
from mrclab.controller.entries import KEY_FIELDS, Drift, Entry, find_drift, switch_entries
from mrclab.controller.finsy_retry import answer_late, reconnect_soon
from mrclab.controller.pipeline import Pipeline, shipped_pipeline
from mrclab.controller.reading import read_all
from mrclab.linux.errors import MrclabError
from mrclab.switches.spec import RunningSwitch
from mrclab.topologies import Fabric

LOGGER = logging.getLogger(__name__)
STATIC_TABLES = tuple(KEY_FIELDS)
AT_ONCE = 16
"""Switches that are read and written at a time. finsy gives each call 10 s. If all switches of a large fabric
were asked at once, a busy machine would not answer the last one in that time."""


class ProgrammingError(MrclabError):
    """A switch could not be programmed, or does not hold its entries."""


class FabricController:
    """The controller of one fabric; an asynchronous context manager.

    ``programmings`` counts, per switch, how often it was programmed and verified: more than once means that
    it restarted. ``ecmp`` has the routes for plain IPv6, once they are installed.
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
        """Return finsy's object for each switch."""
        return {switch.name: switch for switch in self._controller}

    async def programmed(
        self, *, times: int = 1, timeout_s: float = 60, only: Sequence[str] | None = None
    ) -> None:
        """Wait until every switch (or ``only`` these) was programmed and verified at least ``times`` times.

        Raise ProgrammingError on the first that fails, or, when the time is over, with those not done yet.
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
        """Read every switch back and return the switches with wrong or missing entries.

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
