"""The one interface for the targets that run the switch program, and the choice between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from mrclab.linux.errors import BadInputError, MachineError
from mrclab.p4src.targets import Capabilities, target_name
from mrclab.switches.spec import Queue, RunningSwitch, SwitchSpec


class SwitchTarget(Protocol):
    """Something that runs switches. One object runs one set of switches once."""

    @property
    def name(self) -> str:
        """`ebpf` or `bmv2`."""

    @property
    def capabilities(self) -> Capabilities:
        """What this target does and can do."""

    def available(self) -> str | None:
        """Return why this target cannot run here, one line that names the mend; None when it can."""

    def start(
        self, specs: Sequence[SwitchSpec], *, netns: str | None = None, log_dir: Path
    ) -> list[RunningSwitch]:
        """Start the switches and return when all of them answer P4Runtime; they have no pipeline yet.

        `netns` is the name of a network namespace (/run/netns) that has the interfaces of all ports; the
        P4Runtime addresses are then reachable inside it only. Logs go to files in `log_dir`.
        Raise MachineError, BadInputError, or SwitchError when a switch does not come up.
        """

    def shape(self, queues: Mapping[str, Mapping[int, Queue]]) -> bool:
        """Give the queues of ports (by switch and port number) a rate and a depth, so that they build up.

        Return False if the target's queues take no such settings: the kernel's queues of the links do it,
        or this BMv2 has no Thrift. Raise SwitchError if a switch refuses it.
        """

    def alive(self) -> bool:
        """Return true while every process that was started runs."""

    def ended(self) -> str | None:
        """Return how a process ended that should run, in a line; None while all of them run. Switches ended
        by `kill` do not count until they are started again.
        """

    def pids(self) -> list[int]:
        """Return the process ids of the started processes."""

    def processes(self) -> dict[str, int]:
        """Return the process ids by name: a switch's where each is a process, else `server PID`."""

    def last_words(self, name: str) -> str:
        """Return how a process of `processes` that is ending ended, and the last line of its log."""

    def kill(self, *names: str) -> tuple[int, int]:
        """End switches at once, as a crash or a power cut would: their frames drop, their state is lost.

        Their interfaces stay up. Return stamps of CLOCK_MONOTONIC (ns): before the first was ended, and when
        none forwarded any more. Raise SwitchError if one goes on or was dead already.
        """

    def restart(self, *names: str) -> None:
        """Start switches again that ended, at the same addresses, and return when they answer.

        They have no pipeline then: the controller programs them as soon as it is connected again. Raise
        SwitchError as `start` does.
        """

    def stop(self) -> None:
        """Stop everything that was started; harmless when nothing is."""


def select_target(choice: str = "auto") -> SwitchTarget:
    """Return the target of that name, see `target_name`. Raise BadInputError for a name that is none."""
    from mrclab.switches.bmv2 import Bmv2Target
    from mrclab.switches.ebpf.target import EbpfTarget

    choice = target_name(choice)
    if choice == "bmv2":
        return Bmv2Target()
    if choice == "ebpf":
        return EbpfTarget()
    raise BadInputError(f"no switch target {choice!r}: choose auto, ebpf or bmv2")


def require_target(choice: str = "auto") -> str:
    """Return the name of the target of a choice that can run here. Raise BadInputError for an unknown name,
    MachineError if the machine lacks something that it needs.
    """
    target = select_target(choice)
    if lacks := target.available():
        raise MachineError(lacks)
    return target.name
