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
_PREFIX = re.compile(r"[a-z][a-z0-9]{0,31}")


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one testbed. Testbeds with different prefixes do not affect each other.

    ``prefix`` is the name of the switches' namespace. The names of the hosts' namespaces and every run id
    begin with the prefix. ``state_dir`` has the files that describe the running testbed to other processes.
    Raise InputError for a bad prefix.
    """

    prefix: str = DEFAULT_PREFIX
    state_dir: Path = Path("/run/mrclab")

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise InputError(f"'{self.prefix}' is no prefix: small letters and digits, a letter first")

    @classmethod
    def of_prefix(cls, prefix: str) -> Names:
        """Return the names for a prefix, with the state directory below /run."""
        return cls(prefix, Path("/run") / prefix)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Names:
        """Return the names for the prefix MRCLAB_PREFIX or, if this variable is not set, the usual prefix."""
        return cls.of_prefix(environ.get(PREFIX_VARIABLE) or DEFAULT_PREFIX)

    @property
    def fabric(self) -> str:
        """The namespace that all switches share."""
        return self.prefix

    def host(self, name: str) -> str:
        """Return the namespace of a host, or of a switch that has its own namespace."""
        return f"{self.prefix}-{name}"

    def places(self, fabric: Fabric, *, routers: bool = False) -> dict[str, str]:
        """Return the namespace of every node. With ``routers``, each switch has its own namespace."""
        found = {host.name: self.host(host.name) for host in fabric.hosts}
        for switch in fabric.switches:
            found[switch.name] = self.host(switch.name) if routers else self.fabric
        return found

    def of(self, fabric: Fabric, *, routers: bool = False) -> tuple[str, ...]:
        """Return every namespace of a fabric. The first is the switches' namespace."""
        return tuple(dict.fromkeys((self.fabric, *self.places(fabric, routers=routers).values())))

    def new_run_id(self) -> str:
        """Return an id for a new run.

        The id begins with the prefix, by which clean-up recognizes the processes of this testbed.
        """
        return f"{self.prefix}.{os.urandom(6).hex()}"

    def owns_run(self, run_id: str) -> bool:
        """Return True if a run id belongs to this testbed."""
        return run_id.startswith(f"{self.prefix}.")


def switch_ports(fabric: Fabric) -> dict[str, dict[int, str]]:
    """Return the interface of every port of the switches, by switch name and port number."""
    return {switch.name: {port.number: port.ifname for port in switch.ports} for switch in fabric.switches}


def by_sudo(words: str) -> str:
    """Return a command that runs the same mrclab with sudo, for the testbed with the same prefix."""
    kept = f" --preserve-env={PREFIX_VARIABLE}" if os.environ.get(PREFIX_VARIABLE) else ""
    return f'sudo{kept} "$(command -v mrclab)" {words}'


def require_root(words: str) -> None:
    """Raise MachineError if this process does not run as root. ``words`` is the command that needs root."""
    if not is_root():
        raise MachineError(f"not root: run {by_sudo(words)}")
