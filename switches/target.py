"""The one interface for the targets that run the switch program, and the choice between them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from linux.errors import BadInputError
from switches.bmv2 import BMV2_PROGRAM
from switches.spec import RunningSwitch, SwitchSpec


class SwitchTarget(Protocol):
    """Something that runs switches. One object runs one set of switches once."""

    @property
    def name(self) -> str:
        """`ebpf` or `bmv2`."""

    def available(self) -> str | None:
        """Why this target cannot run here, as one line that names the mend; None when it can."""

    def start(
        self, specs: Sequence[SwitchSpec], *, netns: str | None = None, log_dir: Path
    ) -> list[RunningSwitch]:
        """Start the switches and return when all of them answer P4Runtime; they have no pipeline yet.

        `netns` is the name of a network namespace (/run/netns) that has the interfaces of all ports; the
        P4Runtime addresses are then reachable inside it only. Logs go to files in `log_dir`.
        Raises MachineError, BadInputError, or SwitchError when a switch does not come up.
        """

    def alive(self) -> bool:
        """Whether every process that was started still runs."""

    def pids(self) -> list[int]:
        """The process ids of what was started."""

    def kill(self, *names: str) -> tuple[int, int]:
        """End switches at once, as a crash or a power cut would: their frames drop, their state is lost.

        Their interfaces stay up. Returns stamps of CLOCK_MONOTONIC (ns): before the first was told, and when
        none forwarded any more. Raises SwitchError where one goes on or was dead already.
        """

    def restart(self, *names: str) -> None:
        """Start switches again that ended, at the same addresses, and return when they answer.

        They have no pipeline then: the controller programs them as soon as it is connected again. Raises
        SwitchError as `start` does.
        """

    def stop(self) -> None:
        """Stop everything that was started; harmless when nothing is."""


def target_name(choice: str) -> str:
    """The target that a choice stands for: `auto` is bmv2 where simple_switch_grpc is on PATH, else ebpf."""
    if choice != "auto":
        return choice
    return "bmv2" if shutil.which(BMV2_PROGRAM) else "ebpf"


def select_target(choice: str = "auto") -> SwitchTarget:
    """The target of that name, see `target_name`. Raises BadInputError for a name that is none."""
    from switches.bmv2.target import Bmv2Target
    from switches.ebpf.target import EbpfTarget

    choice = target_name(choice)
    if choice == "bmv2":
        return Bmv2Target()
    if choice == "ebpf":
        return EbpfTarget()
    raise BadInputError(f"no switch target {choice!r}: choose auto, ebpf or bmv2")
