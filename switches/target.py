"""The common interface of the targets that run the switch program, and the choice of a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from mrclab.linux.errors import BadInputError, MachineError
from mrclab.p4src.targets import Capabilities, target_name
from mrclab.switches.spec import Queue, RunningSwitch, SwitchSpec


class SwitchTarget(Protocol):
    """A platform that runs switches. An object can be started once, with one set of switches."""

    @property
    def name(self) -> str:
        """`ebpf` or `bmv2`."""

    @property
    def capabilities(self) -> Capabilities:
        """The properties of this target: its features and limits."""

    def available(self) -> str | None:
        """Return None if this target can run here. Otherwise return one line: the reason and its remedy."""

    def start(
        self, specs: Sequence[SwitchSpec], *, netns: str | None = None, log_dir: Path
    ) -> list[RunningSwitch]:
        """Start the switches and return when all of them answer P4Runtime; they have no pipeline yet.

        `netns` names a network namespace (/run/netns) that has the interfaces of all ports. If it is given,
        the P4Runtime addresses are reachable only inside that namespace. Logs go to files in `log_dir`.
        Raise MachineError, BadInputError, or SwitchError if a switch does not start.
        """

    def shape(self, queues: Mapping[str, Mapping[int, Queue]]) -> bool:
        """Set the rate and the depth of queues, which are given by switch and port number.

        Return False if the target has no such settings: the target `ebpf` uses the kernel's queues of the
        links, and BMv2 may have been built without Thrift. Raise SwitchError if a switch returns an error.
        """

    def alive(self) -> bool:
        """Return True if every process that this target started is running."""

    def ended(self) -> str | None:
        """Return None while all processes run. If a process has ended, return how it ended, in one line.
        A switch that `kill` has ended is ignored until it is started again.
        """

    def pids(self) -> list[int]:
        """Return the process ids of the started processes."""

    def processes(self) -> dict[str, int]:
        """Return process ids by name: a switch's name if each switch is a process, else `server PID`."""

    def last_words(self, name: str) -> str:
        """Wait for a process of `processes` to end; return how it ended and the last line of its log."""

    def kill(self, *names: str) -> tuple[int, int]:
        """End switches at once, like a crash or a power cut: switches drop all frames and lose their state.

        The interfaces stay up. Return two times of CLOCK_MONOTONIC (ns): before the first switch is ended,
        and after the last switch has stopped forwarding. Raise SwitchError if a switch does not end.
        """

    def restart(self, *names: str) -> None:
        """Start ended switches again, at the same addresses, and return when they answer.

        The switches have no pipeline: the controller sets it after it has connected again. Raise SwitchError
        if a switch does not start.
        """

    def stop(self) -> None:
        """Stop all switches. Do nothing if no switch was started."""


def select_target(choice: str = "auto") -> SwitchTarget:
    """Return a new target for a choice: auto, ebpf or bmv2. Raise BadInputError for any other choice."""
    from mrclab.switches.bmv2 import Bmv2Target
    from mrclab.switches.ebpf.target import EbpfTarget

    choice = target_name(choice)
    if choice == "bmv2":
        return Bmv2Target()
    if choice == "ebpf":
        return EbpfTarget()
    raise BadInputError(f"no switch target {choice!r}: choose auto, ebpf or bmv2")


def require_target(choice: str = "auto") -> str:
    """Return the name of a chosen target (see `target_name`) and check that it can run on this machine.
    Raise BadInputError for an unknown name, MachineError if the target cannot run here.
    """
    target = select_target(choice)
    if lacks := target.available():
        raise MachineError(lacks)
    return target.name
