"""Second attempts at a repetition: one slow start, or a moment of a busy machine, does not cost the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mrclab.experiments.measure.repetition import Repetition, disturbed, in_place_of
from mrclab.linux.errors import MrclabError


class StartError(MrclabError, RuntimeError):
    """A process of the workload did not start in time, or ended before anything was measured."""


class Attempts:
    """Makes repetitions, some of them a second time.

    ``make`` makes and measures the repetition of a number; ``left`` is the greatest number of second attempts
    in all. Before each, ``spent`` is called and ``say`` gets a line if the start failed.
    """

    def __init__(
        self,
        make: Callable[[int], Repetition],
        left: int,
        say: Callable[[str], None],
        spent: Callable[[], None],
    ) -> None:
        self._make = make
        self._left = left
        self._say = say
        self._spent = spent

    def repetition(self, number: int, *, trials: bool) -> Repetition:
        """Return a repetition; with ``trials`` these are made again one by one, and not the whole.

        A disturbed first attempt is kept beside the second. Raise StartError if processes do not start and no
        attempt is left, and whatever ``make`` raises.
        """
        found = self._started(number)
        if trials or not self._left or not disturbed(found):
            return found
        self._spend()
        second = self._started(number)
        return found if second.interrupted is not None else in_place_of(found, second)

    def _started(self, number: int) -> Repetition:
        """Make a repetition, and begin once more if its processes do not start."""
        try:
            return self._make(number)
        except StartError as error:
            if not self._left:
                raise
            again = f"repetition {number} began again: {error}"
        self._say(again)
        self._spend()
        found = self._make(number)
        return replace(found, validity=replace(found.validity, notes=(*found.validity.notes, again)))

    def _spend(self) -> None:
        self._left -= 1
        self._spent()
