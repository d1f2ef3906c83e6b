"""What every running fabric offers, whether switches or routers forward in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from mrclab.faults.registry import Faults
from mrclab.p4src.targets import Capabilities
from mrclab.topologies import Fabric

if TYPE_CHECKING:
    from mrclab.testbed.network import FabricNetwork

Say = Callable[[str], None]
"""Takes a line of progress."""


class RunningFabric(Protocol):
    """A fabric that is up: a Lab (our switches) or a FrrFabric (routers)."""

    @property
    def network(self) -> FabricNetwork:
        """Namespaces, cables, and the processes in them."""

    @property
    def fabric(self) -> Fabric:
        """The model of the fabric."""

    @property
    def faults(self) -> Faults:
        """The registry of its faults; ``mrclab.faults.kinds`` lists their kinds."""

    @property
    def capabilities(self) -> Capabilities:
        """What its switches do and can do."""

    @property
    def target_name(self) -> str:
        """The switches' target: ``ebpf``, ``bmv2``, or empty for routers."""

    def ended(self) -> str | None:
        """Return how a process that forwards or programs has ended, in a line; None while all of them run."""

    def down(self) -> None:
        """Take everything down. A second call does nothing."""
