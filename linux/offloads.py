"""Offloads off and carrier looked at, by pyroute2's ethtool."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager, closing

# The ioctl half of pyroute2's Ethtool, which does features by ioctl anyway. The whole one reads every
# interface's features again before it changes them, which takes longer than making the interface.
from pyroute2.ethtool.ioctl import EthtoolValue, IoctlEthtool

ETHTOOL_GLINK = 0x0A

# Whatever lets the kernel hand on a frame that is not as it would be on the wire: larger than the MTU,
# without its checksum, or in pieces.
OFFLOADS = re.compile(
    r"^(tx-checksum-.*|rx-checksum|tx-scatter-gather.*|tx-.*segmentation|tx-gso-.*|rx-gro.*|rx-lro)$"
)


def opened() -> AbstractContextManager[IoctlEthtool]:
    """Return ethtool's requests to the interfaces of the calling thread's namespace."""
    return closing(IoctlEthtool())


def switch_off(ethtool: IoctlEthtool, ifnames: Iterable[str]) -> None:
    """Switch off every offload that the interfaces can do without. They are of one kind: all have the
    features of the first."""
    features = None
    for ifname in ifnames:
        ethtool.change_ifname(ifname)
        if features is None:
            features = ethtool.get_features()
            for name in features.keys():  # noqa: SIM118  (iterating over it gives more than the names)
                if OFFLOADS.match(name) and features.is_available(name):
                    features[name] = False
        ethtool.set_features(features)


def settle(ethtool: IoctlEthtool, ifname: str) -> bool:
    """Make the kernel act on a change of carrier now instead of soon; return True if there is carrier.

    An interface that has just got its carrier drops frames until a kernel worker has switched
    its queue on. Asking for the link state does that worker's work at once.
    """
    ethtool.change_ifname(ifname)
    link = EthtoolValue(cmd=ETHTOOL_GLINK)
    ethtool.ifreq.value = ctypes.pointer(link)
    ethtool.ioctl()
    return bool(link.data)
