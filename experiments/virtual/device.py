"""A simulated NIC with the interface of `mrclab.hosts.nic.device.Device`, for every user of one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from mrclab.hosts.endpoint import Endpoint
from mrclab.hosts.rdma.events import Event
from mrclab.simulator.clock import NEVER_PS, PS_PER_NS
from mrclab.simulator.nic import Nic


class VirtualDevice:
    """One NIC. It works when the network's clock runs; nothing here waits."""

    def __init__(self, nic: Nic) -> None:
        self._nic = nic
        endpoint: Any = nic.endpoint
        self.endpoint: Endpoint = endpoint

    def now(self) -> int:
        """Return the virtual time, ns."""
        return self._nic.clock.now_ns

    def events(self) -> list[Event]:
        """Return nothing: the NIC hands each event to its programs."""
        return []

    def flush(self) -> None:
        """Have the NIC send the posted messages."""
        self._nic.wake_now()

    def drops(self) -> int:
        """Return how many frames were read too late: none ever is."""
        return 0

    def turn(self, until_ns: int | None = None, others: Collection[int] = ()) -> Collection[int]:
        """Refuse: only the clock can let time pass."""
        raise RuntimeError("a simulated NIC cannot wait")

    def descriptors(self) -> Collection[int]:
        """Return nothing: no descriptor wakes a simulated NIC."""
        return ()

    def blocked(self) -> Collection[int]:
        """Return nothing: no port waits for a descriptor."""
        return ()

    def due_ns(self) -> int | None:
        """Return when the NIC has its next turn; None while nothing is due."""
        due_ps = self._nic.turn_ps
        return None if due_ps >= NEVER_PS else due_ps // PS_PER_NS

    def close(self) -> None:
        """Do nothing: there is nothing to close."""
