"""The driver of a workload, as the engine sees it, and what drivers share.

One protocol serves agents and rank processes. Drivers of agents (spray and mesh) open them, log, and wait
for all paths in the same way. The sleeps here are part of the scenario, without a condition to wait for.
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

    ``directory`` is the repetition's own; ``log`` takes the processes' output.
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
    """The part of a driver whose workload keeps its rate, and whose processes do not beat."""

    rehearses = False

    def beats(self) -> Beats | None:
        """Return None: the processes do not report about themselves."""
        return None

    def adapt(self, load: Load) -> bool:
        """Return True: there is nothing to adapt."""
        return True


class Driver(Protocol):
    """The processes that carry out a workload. A context manager: leaving it ends them."""

    @property
    def pids(self) -> Mapping[str, int]:
        """Return the processes whose waiting for a CPU counts, by name."""

    @property
    def processes(self) -> int:
        """Return how many processes work at a time."""

    @property
    def over(self) -> bool:
        """Return True when all is done, or something that must not happen did."""

    @property
    def next_ns(self) -> int | None:
        """Return the time of the next call of ``act``; None: never."""

    def __enter__(self) -> Self:
        """Start the processes and connect them."""

    def __exit__(self, *error: Any) -> None:
        """End the processes."""

    def priority(self) -> AbstractContextManager[None]:
        """Return a context in which the engine's thread gets a CPU in time."""

    def start(self) -> int:
        """Begin; return when the measurement begins (ns), which may be later than now."""

    def descriptors(self) -> Collection[RemoteAgent | int]:
        """Return the processes that may send something, or descriptors that are readable once they end."""

    def receive(self, ready: Sequence[object]) -> None:
        """Receive from the processes that have sent something."""

    def act(self, clock: Callable[[], int]) -> None:
        """Do what is due."""

    @property
    def rehearses(self) -> bool:
        """Return True if a trial that does not count is to come before the others, to settle the rate."""

    def beats(self) -> Beats | None:
        """Return the processes' reports about themselves; None if there are none now."""

    def adapt(self, load: Load) -> bool:
        """Adapt the rate after a trial of this load; return True if that trial's rate was right."""

    def ask_restored(self, timeout_s: float) -> None:
        """Begin to wait until no path is considered broken, at most ``timeout_s``."""

    @property
    def restored(self) -> bool | None:
        """Return the answer: None while there is none yet."""

    def stop(self) -> None:
        """Send no more, and wait until all sent packets have arrived."""

    def collect(self) -> Collected:
        """Return what came out."""


ANSWER_S = 180.0


class Agents:
    """One agent a host, and the questions to all of them."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._stack = contextlib.ExitStack()
        self.by_host: dict[str, RemoteAgent] = {}
        self.event_logs: dict[str, Path] = {}
        self._waiting: dict[str, RemoteAgent] = {}
        self._outdated: set[str] = set()  # hosts of agents that must answer an older question first
        self._timeout_s = 0.0
        self._all_restored = True
        self.restored: bool | None = None
        """The answer to ``ask_restored``; None until it arrives."""

    def start(self) -> None:
        """Start the processes."""
        log = self._stack.enter_context(self._setting.log.open("ab"))
        network = self._setting.running.network
        for host in dict.fromkeys(self._setting.placement.hosts):
            agent = RemoteAgent(host, partial(network.spawn, host), stderr=log)
            self.by_host[host] = self._stack.enter_context(agent)

    def close(self) -> None:
        """End the processes."""
        self._stack.close()

    def begin_logs(self, **options: Any) -> None:
        """Have every agent write its events into ``events/<host>.jsonl`` of the repetition."""
        events = self._setting.directory / "events"
        events.mkdir(parents=True, exist_ok=True)
        for host, agent in self.by_host.items():
            self.event_logs[host] = events / f"{host}.jsonl"
            agent.call("log", path=str(self.event_logs[host].resolve()), **options)

    def end_logs(self) -> dict[str, int]:
        """Complete the logs; return how many events each host's log lacks, if it lacks any."""
        lost = {host: int(agent.call("end_log")["lost"]) for host, agent in self.by_host.items()}
        return {host: count for host, count in lost.items() if count}

    @property
    def waiting(self) -> bool:
        """Return True while an agent has a question to answer, and takes no other."""
        return bool(self._waiting)

    def ask_restored(self, timeout_s: float) -> None:
        """Ask all agents to answer as soon as they consider no path broken.

        An agent that has not yet answered the last question (because a switch ended and came back in between)
        is asked again after that answer, which is out of date.
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
        """Return the sending hosts, which have the state of the paths."""
        placement = self._setting.placement
        return {placement.hosts[src] for src, _ in placement.pairs}

    def receive(self, ready: Sequence[object]) -> None:
        """Take the answers. Raise AgentError if an agent has ended."""
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
    """Return the agents' options: the workload's, and the transport's on top."""
    return {**config, **setting.transport.channel_options}


def sleep(duration_ns: int) -> None:
    """Sleep for a part of the scenario, in which its traffic goes on."""
    time.sleep(max(0, duration_ns) / 1e9)


def sleep_until(time_ns: int) -> None:
    """Sleep until a moment of CLOCK_MONOTONIC."""
    sleep(time_ns - time.monotonic_ns())
