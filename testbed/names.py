"""The names of a testbed's namespaces and files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mrclab.linux.errors import InputError, MachineError
from mrclab.linux.system import is_root
from mrclab.topologies import Fabric

RUN_VARIABLE = "MRCLAB_RUN"
PREFIX_VARIABLE = "MRCLAB_PREFIX"
DEFAULT_PREFIX = "mrclab"
_PREFIX = re.compile(r"^[a-z][a-z0-9]{0,31}$")


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one testbed. Two testbeds with different prefixes do not see each other.

    ``prefix`` names the namespace of all switches and begins those of the hosts and every run id;
    ``state_dir`` holds the state for later processes. Raise InputError on an unusable prefix.
    """

    prefix: str = DEFAULT_PREFIX
    state_dir: Path = Path("/run/mrclab")

    def __post_init__(self) -> None:
        if not _PREFIX.match(self.prefix):
            raise InputError(f"'{self.prefix}' is no prefix: small letters and digits, a letter first")

    @classmethod
    def of_prefix(cls, prefix: str) -> Names:
        """Return the names of a prefix, with its state under /run."""
        return cls(prefix, Path("/run") / prefix)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Names:
        """Return the usual names, or those of MRCLAB_PREFIX if it is set."""
        return cls.of_prefix(environ.get(PREFIX_VARIABLE) or DEFAULT_PREFIX)

    @property
    def fabric(self) -> str:
        """The namespace that all switches share."""
        return self.prefix

    def host(self, name: str) -> str:
        """Return the namespace of a host, or of a switch that has a separate one."""
        return f"{self.prefix}-{name}"

    def places(self, fabric: Fabric, *, routers: bool = False) -> dict[str, str]:
        """Return the namespace of every node. ``routers`` have one each, since the kernel routes for them."""
        found = {host.name: self.host(host.name) for host in fabric.hosts}
        for switch in fabric.switches:
            found[switch.name] = self.host(switch.name) if routers else self.fabric
        return found

    def of(self, fabric: Fabric, *, routers: bool = False) -> tuple[str, ...]:
        """Return every namespace of a fabric: first that of the switches, which is always there."""
        return tuple(dict.fromkeys((self.fabric, *self.places(fabric, routers=routers).values())))

    def new_run_id(self) -> str:
        """Return an id for a run.

        It begins with the prefix, so that only our own processes are ever taken for ours.
        """
        return f"{self.prefix}.{os.urandom(6).hex()}"

    def owns_run(self, run_id: str) -> bool:
        """Return true if a run id is one of this testbed's."""
        return run_id.startswith(f"{self.prefix}.")


def switch_ports(fabric: Fabric) -> dict[str, dict[int, str]]:
    """Return the interface of every port: switch name -> {port number: interface}."""
    return {switch.name: {port.number: port.ifname for port in switch.ports} for switch in fabric.switches}


def by_sudo(words: str) -> str:
    """Return the line that runs mrclab as root: sudo by itself keeps neither the PATH nor the prefix."""
    kept = f" --preserve-env={PREFIX_VARIABLE}" if os.environ.get(PREFIX_VARIABLE) else ""
    return f'sudo{kept} "$(command -v mrclab)" {words}'


def require_root(words: str) -> None:
    """Raise MachineError if this process is not root's; ``words`` are the command that needs it."""
    if not is_root():
        raise MachineError(f"not root: run {by_sudo(words)}")
