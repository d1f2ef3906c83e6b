"""The fabric's controller for synchronous callers: its event loop runs in a separate thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from mrclab.controller.entries import Drift
from mrclab.controller.fabric import FabricController
from mrclab.controller.pipeline import Pipeline
from mrclab.controller.telemetry import SwitchCounters, read_counters
from mrclab.linux.errors import SwitchError
from mrclab.switches.spec import RunningSwitch
from mrclab.topologies import Fabric

T = TypeVar("T")
LOOK_S = 0.25  # how often to look whether the switches' processes run, while one is to answer
STOP_TIMEOUT_S = 10.0


class ControllerThread:
    """Runs a FabricController until it is stopped. The methods may be called from any one thread.

    The thread inherits the network namespace of the thread that starts it, so enter the switches' first.
    """

    def __init__(
        self,
        fabric: Fabric,
        switches: Sequence[RunningSwitch],
        pipeline: Pipeline | None = None,
        ended: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Take how a switch's process ended from ``ended``: then no method waits for an answer any longer."""
        self._fabric = fabric
        self._switches = switches
        self._pipeline = pipeline
        self._ended = ended
        self._ready: Future[FabricController] = Future()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._main, name="controller", daemon=True)

    def start(self) -> None:
        """Connect to every switch and begin to program them; do not wait for the end."""
        self._thread.start()
        self._ready.result()

    def stop(self) -> None:
        """Disconnect from every switch. Their entries stay."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(STOP_TIMEOUT_S)

    def programmed(self, *, times: int = 1, timeout_s: float = 60) -> None:
        """See FabricController.programmed."""
        self._call(self._ready.result().programmed(times=times, timeout_s=timeout_s))

    def programmed_again(self, switch: str, *, times: int, timeout_s: float = 60) -> None:
        """Wait until one switch was programmed ``times`` times in all. See FabricController.programmed."""
        work = self._ready.result().programmed(times=times, timeout_s=timeout_s, only=[switch])
        self._call(work)

    def install_ecmp(self) -> None:
        """Make every switch route plain IPv6 as well, by a hash of the flow. See mrclab.controller.ecmp."""
        self._call(self._ready.result().ecmp.install())

    def install_structured(self) -> None:
        """Make every switch route plain IPv6 as well, by structured EVs. See mrclab.controller.ecmp."""
        self._call(self._ready.result().ecmp.install(structured=True))

    def withdraw(self, a: str, b: str) -> None:
        """Take a link out of the ECMP routes. See EcmpRoutes.withdraw."""
        self._call(self._ready.result().ecmp.withdraw(a, b))

    def restore(self, a: str, b: str) -> None:
        """Bring a link back into the ECMP routes. See EcmpRoutes.restore."""
        self._call(self._ready.result().ecmp.restore(a, b))

    def verify(self) -> tuple[Drift, ...]:
        """See FabricController.verify."""
        return self._call(self._ready.result().verify())

    @property
    def programmings(self) -> Mapping[str, int]:
        """How often each switch was programmed."""
        return dict(self._ready.result().programmings)

    @property
    def election_ids(self) -> Mapping[str, int]:
        """The election id under which this controller is primary, by switch."""
        return {name: switch.election_id for name, switch in self._ready.result().switches.items()}

    def counters(self, only: str | None = None) -> Mapping[str, SwitchCounters]:
        """Return the counters of every switch that answers, or of the named one, by name."""
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
