"""Agents on hosts, as the drivers of spray and mesh use them: opening, logging, waiting for all paths."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mrclab.experiments.live.drivers.driver import Setting
from mrclab.hosts.remote import AgentError, RemoteAgent

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
