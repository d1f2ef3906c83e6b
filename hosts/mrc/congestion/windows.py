"""The congestion windows of a NIC: one for each destination and control, which queue pairs share."""

from __future__ import annotations

from collections.abc import Callable

from mrclab.hosts.mrc.config import MrcConfig, NsccConfig
from mrclab.hosts.mrc.congestion.choice import make_controller
from mrclab.hosts.mrc.congestion.control import CongestionControl
from mrclab.hosts.rdma.queue_pair import SharedWindow

Made = tuple[CongestionControl, SharedWindow]


class Windows:
    """The controllers that queue pairs share, and who waits for room in them."""

    def __init__(self, other: Callable[[MrcConfig], CongestionControl] | None) -> None:
        """`other` makes a controller in place of the core's own."""
        self._other = other
        self.shared: dict[tuple[frozenset[bytes], str, NsccConfig], Made] = {}

    def of(self, peers: frozenset[bytes], config: MrcConfig) -> tuple[CongestionControl, SharedWindow | None]:
        """Return the controller of the way to a peer, and who waits for it if it is shared."""
        key = peers, config.congestion, config.nscc
        found = self.shared.get(key)
        if found is not None:
            return found
        controller = make_controller(config, self._other)
        if not controller.shared:
            return controller, None
        made = controller, SharedWindow()
        self.shared[key] = made
        return made
