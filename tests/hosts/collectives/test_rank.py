"""The process of a host's ranks: which links it must avoid, and from which time on."""

import time
from types import SimpleNamespace
from typing import Any, cast

from mrclab.hosts.collectives.rank import RankProcess


def test_links_are_denied_when_they_are_due() -> None:
    denied: list[list[str]] = []
    seat: Any = SimpleNamespace(channel=SimpleNamespace(deny=denied.append), run=lambda times: None)
    process = RankProcess()
    process._seats = [cast(Any, seat)]
    now = time.monotonic_ns()
    later = now + 3600 * 10**9
    plan = [(now - 2, ["a"]), (now - 1, []), (later, ["b"])]
    process._run(cast(Any, {"start_ns": now, "measure_ns": now, "denied": plan}))
    process._deny_what_is_due()
    assert denied == [["a"], []]
    process._deny_what_is_due()
    assert denied == [["a"], []]
