"""The interface of drivers to the engine, and the parts that drivers share.

The interface is the same for agents, rank processes and programs. The drivers that use agents (spray and
mesh) share `Agents`: it starts the agents, writes their event logs, and waits until all paths are in use. The
sleeps here are part of the scenario: they wait for a time, not for a condition.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from mrclab.experiments.measure.evidence import Collected
from mrclab.experiments.measure.load import Beats, Load
from mrclab.experiments.spec.model import Scenario
from mrclab.experiments.spec.placement import Placement
from mrclab.hosts.transports.table import Transport
from mrclab.hosts.worker import AgentError, RemoteAgent

if TYPE_CHECKING:
    from mrclab.testbed.running import RunningFabric


@dataclass(frozen=True, slots=True)
class Setting:
    """A driver's context: the repetition's fabric, workload, seed and directories.

    ``directory`` is the repetition's directory. The processes' output goes to the file ``log``.
    """

    running: RunningFabric
    scenario: Scenario
    transport: Transport
    placement: Placement
    seed: int
    directory: Path
    log: Path
    say: Callable[[str], None]


class Steady:
    """The methods of drivers whose workload has a fixed rate and whose processes send no reports."""

    rehearses = False

    def beats(self) -> Beats | None:
        """Return None, because the processes send no reports."""
        return None

    def adapt(self, load: Load) -> bool:
        """Return True (the rate needs no change), because the rate is fixed."""
        return True


class Driver(Protocol):
    """The interface of a driver of a workload's processes. Leaving the ``with`` ends these processes."""

    @property
    def pids(self) -> Mapping[str, int]:
        """Return the ids, by name, of the processes whose waiting time for a CPU is measured."""

    @property
    def processes(self) -> int:
        """Return how many of the workload's processes work at the same time."""

    @property
    def over(self) -> bool:
        """Return True if the workload is done, or if an error was found."""

    @property
    def next_ns(self) -> int | None:
        """Return the time at which to call ``act`` next, or None."""

    def __enter__(self) -> Self:
        """Start the processes and connect them."""

    def __exit__(self, *error: Any) -> None:
        """End the processes."""

    def priority(self) -> AbstractContextManager[None]:
        """Return a context in which the thread that makes the faults gets a CPU without a long wait."""

    def start(self) -> int:
        """Start the workload; return the time (now or later) at which the measurement begins, ns."""

    def descriptors(self) -> Collection[RemoteAgent | int]:
        """Return processes that may send a message, or descriptors that are readable when a process ends."""

    def receive(self, ready: Sequence[object]) -> None:
        """Receive the messages of the processes in ``ready``."""

    def act(self, clock: Callable[[], int]) -> None:
        """Perform the actions that are due."""

    @property
    def rehearses(self) -> bool:
        """Return True if trials that do not count are needed first, to adapt the rate."""

    def beats(self) -> Beats | None:
        """Return the processes' reports about themselves; None if there are no reports now."""

    def adapt(self, load: Load) -> bool:
        """Adapt the rate after a trial with this load; return True if that trial's rate was not too high."""

    def ask_restored(self, timeout_s: float) -> None:
        """Start a wait that ends after ``timeout_s``, or when the senders have no path marked as broken."""

    @property
    def restored(self) -> bool | None:
        """Return whether all paths are in use again; None while `ask_restored` still waits."""

    def stop(self) -> None:
        """Stop sending, and wait until all sent packets have arrived."""

    def collect(self) -> Collected:
        """Return the results and counters."""


ANSWER_S = 180.0


class Agents:
    """The agents of a workload, one on each host, and the requests to them."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._stack = contextlib.ExitStack()
        self.by_host: dict[str, RemoteAgent] = {}
        self.event_logs: dict[str, Path] = {}
        self._waiting: dict[str, RemoteAgent] = {}
        self._outdated: set[str] = set()  # hosts whose agents must first answer an older request
        self._timeout_s = 0.0
        self._all_restored = True
        self.restored: bool | None = None
        """True if all paths are in use again after ``ask_restored``; None until all agents have answered."""

    def start(self) -> None:
        """Start the agents."""
        log = self._stack.enter_context(self._setting.log.open("ab"))
        network = self._setting.running.network
        for host in dict.fromkeys(self._setting.placement.hosts):
            agent = RemoteAgent(host, partial(network.spawn, host), stderr=log)
            self.by_host[host] = self._stack.enter_context(agent)

    def close(self) -> None:
        """End the agents."""
        self._stack.close()

    def begin_logs(self, **options: Any) -> None:
        """Let each agent write its events into ``events/<host>.jsonl`` in the repetition's directory."""
        events = self._setting.directory / "events"
        events.mkdir(parents=True, exist_ok=True)
        for host, agent in self.by_host.items():
            self.event_logs[host] = events / f"{host}.jsonl"
            agent.call("log", path=str(self.event_logs[host].resolve()), **options)

    def end_logs(self) -> dict[str, int]:
        """Complete the logs; return the number of missing events of each host whose log is incomplete."""
        lost = {host: int(agent.call("end_log")["lost"]) for host, agent in self.by_host.items()}
        return {host: count for host, count in lost.items() if count}

    @property
    def waiting(self) -> bool:
        """Return True while an agent has not answered yet. Until then, the agent takes no other request."""
        return bool(self._waiting)

    def ask_restored(self, timeout_s: float) -> None:
        """Ask the agents of senders to answer when no path is marked as broken any more.

        If a switch ended and was started again, an agent may not have answered the previous request yet. The
        answer to that request will be out of date. So this method sends the request again after that answer.
        """
        self.restored, self._all_restored, self._timeout_s = None, True, timeout_s
        self._outdated = set(self._waiting)
        for host, agent in self.by_host.items():
            if host in self._asked() and host not in self._waiting:
                self._ask(host, agent)

    def _ask(self, host: str, agent: RemoteAgent) -> None:
        agent.send("wait", what="restored", timeout_s=self._timeout_s)
        self._waiting[host] = agent

    def _asked(self) -> Collection[str]:
        """Return the sending hosts. Only their agents know the state of the paths."""
        placement = self._setting.placement
        return {placement.hosts[src] for src, _ in placement.pairs}

    def receive(self, ready: Sequence[object]) -> None:
        """Receive the agents' answers. Raise AgentError if an agent has ended."""
        for host, agent in self.by_host.items():
            if agent not in ready:
                continue
            answer = agent.receive()
            if self._waiting.pop(host, None) is None:
                raise AgentError(f"the agent on {host} said something without being asked")
            if host in self._outdated:
                self._outdated.remove(host)
                self._ask(host, agent)
                continue
            self._all_restored = self._all_restored and bool(answer["holds"])
            if not self._waiting:
                self.restored = self._all_restored


def transport_config(setting: Setting, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the agents' options: ``config`` and the transport's options, which have priority."""
    return {**config, **setting.transport.channel_options}


def sleep(duration_ns: int) -> None:
    """Sleep for a time that the scenario sets. The traffic continues."""
    time.sleep(max(0, duration_ns) / 1e9)


def sleep_until(time_ns: int) -> None:
    """Sleep until a time of CLOCK_MONOTONIC."""
    sleep(time_ns - time.monotonic_ns())
