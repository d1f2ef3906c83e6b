"""The common interface of all running fabrics, with P4 switches or with routers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from mrclab.faults.registry import Faults
from mrclab.p4src.targets import Capabilities
from mrclab.topologies import Fabric

if TYPE_CHECKING:
    from mrclab.testbed.network import FabricNetwork

Say = Callable[[str], None]
"""A function that shows a line of progress."""


class RunningFabric(Protocol):
    """A running fabric: a Lab (P4 switches) or a FrrFabric (routers)."""

    @property
    def network(self) -> FabricNetwork:
        """Namespaces, cables, and the processes in the namespaces."""

    @property
    def fabric(self) -> Fabric:
        """The model of the fabric."""

    @property
    def faults(self) -> Faults:
        """The registry of the fabric's faults; ``mrclab.faults.kinds`` lists the kinds."""

    @property
    def capabilities(self) -> Capabilities:
        """The properties of the switches' target: its features and its limits."""

    @property
    def target_name(self) -> str:
        """The switches' target: ``ebpf``, ``bmv2``, or empty for routers."""

    def ended(self) -> str | None:
        """Return one line about a process that ended, but not because of a fault. Otherwise return None."""

    def down(self) -> None:
        """Take everything down. A second call has no effect."""
