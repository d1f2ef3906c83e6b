"""The experiment asks all agents again and again whether their paths are back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mrclab.experiments.live.drivers.driver import Agents
from mrclab.hosts.worker import AgentError


class Agent:
    """A fake agent. It accepts one question at a time, and answers when the test asks it to."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.open = 0
        self._holds = True

    def send(self, do: str, *, what: str, timeout_s: float) -> None:
        assert (do, what, self.open) == ("wait", "restored", 0)
        self.asked.append(timeout_s)
        self.open = 1

    def answers(self, holds: bool) -> Agent:
        self._holds = holds
        return self

    def receive(self) -> dict[str, Any]:
        self.open = 0
        return {"holds": self._holds}


def agents_of(*hosts: str) -> tuple[Agents, dict[str, Agent]]:
    pairs = [(number, 0) for number in range(len(hosts))]
    setting: Any = SimpleNamespace(placement=SimpleNamespace(hosts=hosts, pairs=pairs))
    agents, on_paper = Agents(setting), {host: Agent() for host in hosts}
    by_host: dict[str, Any] = dict(on_paper)
    agents.by_host = by_host
    return agents, on_paper


def test_paths_are_back_when_all_agents_say_so() -> None:
    agents, on_paper = agents_of("h0", "h1")
    agents.ask_restored(5)
    agents.receive([on_paper["h1"].answers(True)])
    assert (agents.restored, agents.waiting) == (None, True)
    agents.receive([on_paper["h0"].answers(False)])
    assert (agents.restored, agents.waiting) == (False, False)


def test_an_answer_to_the_question_before_is_not_taken_for_that_to_the_last() -> None:
    """While agents wait for paths, a switch ends and comes back. A late answer must not end the run."""
    agents, on_paper = agents_of("h0", "h1")
    agents.ask_restored(5)
    agents.receive([on_paper["h1"].answers(True)])
    agents.ask_restored(4)
    assert [agent.asked for agent in on_paper.values()] == [[5], [5, 4]]
    agents.receive([on_paper["h0"].answers(False), on_paper["h1"].answers(True)])
    assert (agents.restored, on_paper["h0"].asked) == (None, [5, 4])
    agents.receive([on_paper["h0"].answers(True)])
    assert (agents.restored, agents.waiting) == (True, False)


def test_what_nobody_asked_for_ends_the_run() -> None:
    agents, on_paper = agents_of("h0")
    with pytest.raises(AgentError, match="without being asked"):
        agents.receive([on_paper["h0"].answers(True)])
