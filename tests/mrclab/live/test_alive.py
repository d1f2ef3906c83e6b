"""Switches that die while the page is open are noticed. A switch that a fault switched off is not dead."""

from __future__ import annotations

from typing import Any

import pytest

from mrclab.linux.errors import SwitchError
from mrclab.live.health import SwitchCheck
from mrclab.topologies import load_fabric

TINY = load_fabric("tiny")


class Testbed:
    """A fake testbed that answers requests as the process of `mrclab up` does."""

    __test__ = False

    def __init__(self) -> None:
        self.dead: set[str] = set()
        self.faults: dict[str, Any] = {}
        self.asked: list[str] = []

    def __call__(self, command: str, **given: Any) -> dict[str, Any]:
        self.asked.append(command)
        if command == "counters":
            return {"counters": None if given["switch"] in self.dead else {}}
        states = {s.name: {"counters": None if s.name in self.dead else {}} for s in TINY.switches}
        return {"faults": self.faults, "switches": states}


def test_a_dead_switch_is_named_once_its_turn_comes() -> None:
    testbed = Testbed()
    check = SwitchCheck(TINY, testbed)
    for _ in TINY.switches:
        check.check(())
    testbed.dead = {TINY.switches[-1].name}
    for _ in TINY.switches[1:]:
        check.check(())
    with pytest.raises(SwitchError, match=f"have died: {TINY.switches[-1].name}$"):
        check.check(())
    testbed.dead = {switch.name for switch in TINY.switches}
    with pytest.raises(SwitchError, match="and 5 more"):
        check.check(())


def test_a_switch_that_a_fault_has_switched_off_is_not_dead() -> None:
    testbed = Testbed()
    testbed.dead = {switch.name for switch in TINY.switches}
    check = SwitchCheck(TINY, testbed)
    check.check(["p0-t1-0"])
    assert testbed.asked == []
    testbed.faults = {"p0-t1-0": {}}  # another program made this fault
    check.check(())
    assert testbed.asked == ["counters", "status"]
