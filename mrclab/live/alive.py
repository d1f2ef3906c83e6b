"""Whether the switches of the testbed still run, asked a little at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import cycle
from typing import Any

from mrclab.linux.errors import SwitchError
from mrclab.topologies import Fabric

_MOST_NAMED = 3


class SwitchCheck:
    """Asks one switch after the other for its counters, and all if one does not answer.

    ``ask`` is `mrclab.control.call` for this testbed: a command and its arguments.
    """

    def __init__(self, fabric: Fabric, ask: Callable[..., dict[str, Any]]) -> None:
        self._names = cycle(switch.name for switch in fabric.switches)
        self._ask = ask

    def check(self, faults: Collection[str]) -> None:
        """Ask the next switch, unless there are faults: a fault may have switched it off.

        Raise SwitchError, with names, for switches that have died.
        """
        if faults or self._ask("counters", switch=next(self._names))["counters"] is not None:
            return
        status = self._ask("status", verify=False)
        dead = [name for name, switch in status["switches"].items() if switch["counters"] is None]
        if dead and not status["faults"]:
            more = f" and {len(dead) - _MOST_NAMED} more" if len(dead) > _MOST_NAMED else ""
            raise SwitchError(f"switches have died: {', '.join(dead[:_MOST_NAMED])}{more}")
