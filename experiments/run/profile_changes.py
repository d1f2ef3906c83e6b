"""The changes of profiles that a scenario asks for, carried out at their times on the hosts' NICs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from mrclab.experiments.spec.profiles import ProfileChange

Clock = Callable[[], int]
Change = Callable[[str, dict[str, Any]], Mapping[str, Any]]
"""Sends a host's NIC a request about its profiles, and returns the answer."""


class ProfileSource:
    """Makes the changes in order of time. It never waits: ``next_ns`` is when the next one is due."""

    def __init__(
        self, changes: Sequence[ProfileChange], hosts: Collection[str], change: Change, start_ns: int
    ) -> None:
        self._coming = sorted(changes, key=lambda entry: entry.at_ns)
        self._hosts = tuple(dict.fromkeys(hosts))
        self._change = change
        self._start_ns = start_ns
        self.notes: list[str] = []
        self.failures: list[str] = []

    @property
    def next_ns(self) -> int | None:
        """Return when the next change is due."""
        return self._start_ns + self._coming[0].at_ns if self._coming else None

    @property
    def over(self) -> bool:
        """Return True if no change is left."""
        return not self._coming

    def act(self, clock: Clock) -> None:
        """Make the changes that are due."""
        while (due := self.next_ns) is not None and due <= clock():
            entry = self._coming.pop(0)
            for host in entry.hosts_of(self._hosts):
                self._note(entry, host, self._change(host, entry.request()))

    def _note(self, entry: ProfileChange, host: str, answer: Mapping[str, Any]) -> None:
        when = f"{entry.at_ns / 1e6:g} ms: {host}"
        failed = [answer["error"]] if "error" in answer else []
        results = answer.get("results", {})
        failed += [f"{ev}: {outcome}" for ev, outcome in results.items() if outcome != "ok"]
        self.failures += [f"profiles at {when}: {why}" for why in failed]
        if not failed:
            count = answer.get("done", answer.get("replaced"))
            self.notes.append(f"profiles at {when}: {entry.do}, {count} EVs")
