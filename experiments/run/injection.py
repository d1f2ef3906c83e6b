"""Making and undoing the faults of a schedule on a running fabric, with a record of each."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from controller.fault_kinds import Direction, Fault, Moment
from experiments.measure.faults import FaultRecord
from experiments.run.fabrics import RunningFabric
from experiments.spec.fault_schedule import BUSIEST, PlannedFault


@dataclass(order=True, slots=True)
class _Action:
    at_ns: int
    order: int
    fault: PlannedFault = field(compare=False)
    mend: bool = field(compare=False)


@dataclass(slots=True)
class _Made:
    fault: PlannedFault
    moment: Moment
    mended: Moment | None = None


class Injector:
    """Carries out a schedule: ``next_ns`` says when the next action is due, ``act`` does what is due.

    ``undo_all`` mends what is still broken; call it whatever happened.
    """

    def __init__(
        self,
        lab: RunningFabric,
        schedule: Sequence[PlannedFault],
        start_ns: int,
        tell: Callable[[PlannedFault, int, bool], None] = lambda fault, t_ns, mended: None,
    ) -> None:
        """``tell`` learns each fault that was made or mended, and when."""
        self._lab = lab
        self._tell = tell
        self._actions: list[_Action] = []
        self._made: dict[int, _Made] = {}
        self.late_ns = 0
        """By how much the latest of all was made or mended after it was due."""
        for number, fault in enumerate(schedule):
            self._actions.append(_Action(start_ns + fault.at_ns, 2 * number + 1, fault, False))
            if fault.until_ns is not None:
                # Mending comes before breaking where both are due at once.
                self._actions.append(_Action(start_ns + fault.until_ns, 2 * number, fault, True))
        heapq.heapify(self._actions)

    def prepare(self) -> None:
        """Opens what the faults will need, so that opening it does not widen their moments."""
        for fault in {action.fault.place: action.fault for action in self._actions}.values():
            if fault.place != BUSIEST:
                self._lab.faults.prepare(_fault(fault))

    @property
    def asks_for_the_busiest(self) -> bool:
        """Whether a fault is to strike the link that then carries most."""
        return any(action.fault.place == BUSIEST for action in self._actions)

    def resolve(self, busiest: str) -> None:
        """Names the link that carries most."""
        for action in self._actions:
            if action.fault.place == BUSIEST:
                action.fault = replace(action.fault, place=busiest)
        self.prepare()

    @property
    def next_ns(self) -> int | None:
        """When the next action is due; None where none is left."""
        return self._actions[0].at_ns if self._actions else None

    def act(self, now: Callable[[], int]) -> None:
        """Does everything that is due."""
        while self._actions and self._actions[0].at_ns <= now():
            action = heapq.heappop(self._actions)
            self.late_ns = max(self.late_ns, now() - action.at_ns)
            if action.mend:
                self._mend(action.order // 2)
            else:
                number = action.order // 2
                moment = self._lab.faults.apply(_fault(action.fault))
                self._made[number] = _Made(action.fault, moment)
                self._tell(action.fault, moment.t_after_ns, False)

    def _mend(self, number: int) -> None:
        made = self._made.get(number)
        if made is not None and made.mended is None:
            made.mended = self._lab.faults.undo(made.fault.place)
            self._tell(made.fault, made.mended.t_after_ns, True)

    def undo_all(self) -> None:
        """Mends what is broken and forgets what is still to come."""
        self._actions.clear()
        for number in self._made:
            self._mend(number)

    def records(self) -> list[FaultRecord]:
        """What was broken and when, in the order in which it was."""
        return [
            FaultRecord(
                kind=made.fault.kind,
                where=made.fault.place,
                t_before_ns=made.moment.t_before_ns,
                t_after_ns=made.moment.t_after_ns,
                restore_before_ns=made.mended.t_before_ns if made.mended else None,
                restore_after_ns=made.mended.t_after_ns if made.mended else None,
                direction=made.fault.direction,
            )
            for made in self._made.values()
        ]


def _fault(fault: PlannedFault) -> Fault:
    return Fault(fault.kind, fault.place, cast(Direction, fault.direction), **fault.params)
