"""Offloads off and carrier looked at, by ioctl: a process per interface would cost seconds."""

from __future__ import annotations

import array
import fcntl
import re
import socket
import struct
from types import TracebackType

SIOCETHTOOL = 0x8946
ETHTOOL_GLINK = 0x0A
ETHTOOL_GSTRINGS = 0x1B
ETHTOOL_GSSET_INFO = 0x37
ETHTOOL_GFEATURES = 0x3A
ETHTOOL_SFEATURES = 0x3B
ETH_SS_FEATURES = 4
_STRING = 32

# Whatever lets the kernel hand on a frame that is not as it would be on the wire: larger than the MTU,
# without its checksum, or in pieces.
OFFLOADS = re.compile(
    r"^(tx-checksum-.*|rx-checksum|tx-scatter-gather.*|tx-.*segmentation|tx-gso-.*|rx-gro.*|rx-lro)$"
)


class Ethtool:
    """Ethtool's requests to the interfaces of one namespace: the one in which it is opened."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._features: tuple[str, ...] | None = None

    def __enter__(self) -> Ethtool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()

    def _request(self, ifname: str, request: bytes) -> bytes:
        buffer = array.array("B", request)
        address, _ = buffer.buffer_info()
        fcntl.ioctl(self._socket, SIOCETHTOOL, struct.pack("16sP16x", ifname.encode(), address))
        return buffer.tobytes()

    def feature_names(self, ifname: str) -> tuple[str, ...]:
        """The kernel's feature names, in the order of its bits; the same for every interface."""
        if self._features is None:
            reply = self._request(
                ifname, struct.pack("=IIQI", ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 0)
            )
            (count,) = struct.unpack_from("=I", reply, 16)
            head = struct.pack("=III", ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count)
            strings = self._request(ifname, head + bytes(count * _STRING))[len(head) :]
            self._features = tuple(
                strings[i * _STRING : (i + 1) * _STRING].split(b"\0")[0].decode() for i in range(count)
            )
        return self._features

    def offloads_off(self, ifname: str) -> None:
        """Switches off every offload that the interface can be without."""
        names = self.feature_names(ifname)
        blocks = (len(names) + 31) // 32
        valid = [0] * blocks
        for bit, name in enumerate(names):
            if OFFLOADS.match(name):
                valid[bit // 32] |= 1 << bit % 32
        wanted = b"".join(struct.pack("=II", mask, 0) for mask in valid)
        self._request(ifname, struct.pack("=II", ETHTOOL_SFEATURES, blocks) + wanted)

    def offloads_on(self, ifname: str) -> tuple[str, ...]:
        """The offloads that are still on, by the kernel's names."""
        names = self.feature_names(ifname)
        blocks = (len(names) + 31) // 32
        head = struct.pack("=II", ETHTOOL_GFEATURES, blocks)
        reply = self._request(ifname, head + bytes(blocks * 16))
        active = [struct.unpack_from("=IIII", reply, len(head) + 16 * block)[2] for block in range(blocks)]
        return tuple(
            name
            for bit, name in enumerate(names)
            if active[bit // 32] >> bit % 32 & 1 and OFFLOADS.match(name)
        )

    def settle(self, ifname: str) -> bool:
        """Has the kernel act on a change of carrier now instead of soon; returns whether there is carrier.

        An interface that has just got its carrier drops what it is given until a kernel worker has switched
        its queue on. Asking for the link state does that worker's work at once.
        """
        (link,) = struct.unpack_from("=I", self._request(ifname, struct.pack("=II", ETHTOOL_GLINK, 0)), 4)
        return bool(link)
