"""Check before a run that the machine has the programs and kernel features that the run needs."""

from __future__ import annotations

import shutil
from collections.abc import Iterable

from mrclab.experiments.spec.model import Scenario
from mrclab.experiments.spec.program_workload import Program
from mrclab.hosts.training.model import require_jax
from mrclab.hosts.transports.table import Transport
from mrclab.linux.errors import MachineError


def require_workload(scenario: Scenario) -> None:
    """Raise MachineError if the machine cannot run a scenario's workload, on any target."""
    if scenario.workload.kind == "transformer":
        require_jax()
    if isinstance(scenario.workload, Program):
        from mrclab.native.build import libraries  # imported here: not needed in virtual time

        for program in scenario.workload.programs:
            if shutil.which(program.run[0]) is None:
                mend = "install it, or give its path in workload.programs (ib_write_bw: apt install perftest)"
                raise MachineError(f"no program '{program.run[0]}' here", mend)
        libraries()


def require_all(scenario: Scenario) -> None:
    """Raise MachineError if the machine cannot run all transports of a scenario."""
    require_transports(scenario.transports, scenario.target)


def require_transports(transports: Iterable[Transport], target: str) -> None:
    """Check for everything that the transports need: the switches' target, FRRouting, MPTCP.

    Raise MachineError for the first transport that cannot run. If there are several transports, the message
    names this transport.
    """
    from mrclab.experiments.live.fabrics import require_mptcp  # imported here: not needed in virtual time
    from mrclab.switches.target import require_target
    from mrclab.testbed.frr.daemons import find_daemons

    transports = tuple(transports)
    if any(transport.routing != "frr" for transport in transports):
        require_target(target)
    for transport in transports:
        try:
            if transport.routing == "frr":
                find_daemons()
            if transport.kind == "mptcp":
                require_mptcp()
        except MachineError as error:
            who = f"{transport.name} cannot run here: " if len(transports) > 1 else ""
            raise MachineError(f"{who}{error.missing}", error.mend) from None
