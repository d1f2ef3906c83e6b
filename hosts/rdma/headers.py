"""The headers that MRC and RoCEv2 have in common: their lengths, offsets and layouts.

All integers are big endian. Both transports begin with the InfiniBand base transport header (BTH), which the
sender wraps in UDP, IPv6 and Ethernet; with SRv6 there is an outer IPv6 header in front of the inner one.
"""

from __future__ import annotations

import struct
from typing import Final

Buffer = bytes | bytearray | memoryview

UDP_PORT: Final = 4791
"""RoCEv2's port, used by default; some sources of the MRC specification say 4971."""

ETH_LEN: Final = 14
IPV6_LEN: Final = 40
UDP_LEN: Final = 8
BTH_LEN: Final = 12
RETH_LEN: Final = 16
IMM_LEN: Final = 4
ICRC_LEN: Final = 4

INNER_OFFSET: Final = ETH_LEN + IPV6_LEN
"""Start of the inner IPv6 header in a frame with an outer one."""
UDP_OFFSET: Final = INNER_OFFSET + IPV6_LEN
BTH_OFFSET: Final = UDP_OFFSET + UDP_LEN
PLAIN_BTH_OFFSET: Final = BTH_OFFSET - IPV6_LEN
"""Start of the BTH in a frame without an outer IPv6 header."""

ETHERTYPE_IPV6: Final = 0x86DD
NEXT_IPV6: Final = 41
NEXT_UDP: Final = 17

BTH_ACK_REQUEST: Final = 0x80
"""Bit of the byte before the PSN: the sender wants an acknowledgement."""

BTH_STRUCT: Final = struct.Struct(">BBHII")
"""BTH: opcode, flags with pad count and version, P_Key, reserved byte with QPN, flags with PSN."""
RETH_STRUCT: Final = struct.Struct(">QII")
"""RETH: virtual address, rkey, DMA length."""
IMM_STRUCT: Final = struct.Struct(">I")
"""Immediate data; an AETH (syndrome and MSN) has the same shape."""


class WireError(ValueError):
    """Bytes that do not hold the header they should."""


def unpack(layout: struct.Struct, buffer: Buffer, offset: int) -> tuple[int, ...]:
    """Return the fields of the header at `offset`. Raise WireError if the bytes end too early."""
    if offset < 0 or len(buffer) - offset < layout.size:
        raise WireError(f"{len(buffer) - offset} bytes where {layout.size} are needed")
    return layout.unpack_from(buffer, offset)
