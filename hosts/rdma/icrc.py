"""The invariant CRC over an MRC packet, by the RoCEv2 rule [IBTA Annex A17.3.3].

CRC-32 (the Ethernet polynomial, which `crc32` computes) over: eight bytes of ones, the inner IPv6
header, the UDP header, the BTH and everything up to the ICRC itself. Fields a network may rewrite count
as all ones: traffic class, flow label and hop limit of IPv6, the UDP checksum, and the reserved byte 4 of the
BTH. The outer IPv6 header is not covered: switches rewrite its destination at every hop. The result goes out
least significant byte first.

Two properties of CRCs keep this to one pass over the payload and no copy:

* The part before the BTH is the same for all packets of one path and length, so its CRC is computed once
  (`prefix_crc`) and passed to `crc32` as the starting value.
* The BTH's reserved byte is sent as zero but counts as 0xFF. A CRC is linear, so that difference can be moved
  into the starting value: `RESERVED_FIX` is the change of the register that four byte steps turn into 0xFF.
  It is part of `prefix_crc`, and from there on the bytes count as they are.
"""

from typing import Final

try:
    # The same function, ten times as fast: what zlib needs for 4 KiB is a quarter of all a packet costs here.
    from zlib_ng.zlib_ng import crc32 as crc32
except ImportError:
    from zlib import crc32 as crc32

_POLYNOMIAL: Final = 0xEDB88320
RESIDUE: Final = 0x2144DF1C
"""CRC-32 of any message followed by its own CRC, least significant byte first."""


def _undo_zero_bytes(register: int, count: int) -> int:
    """Return the CRC register that `count` zero bytes turn into `register`."""
    for _ in range(8 * count):
        # The polynomial has its top bit set, so the top bit shows whether the step forward subtracted it.
        if register & 0x80000000:
            register = (((register ^ _POLYNOMIAL) << 1) | 1) & 0xFFFFFFFF
        else:
            register = (register << 1) & 0xFFFFFFFF
    return register


RESERVED_FIX: Final = _undo_zero_bytes(0xFF, 4)


def prefix_crc(ipv6_udp: bytes) -> int:
    """Return the starting value for the BTH onwards, given the inner IPv6 and UDP headers (48 bytes)."""
    masked = bytearray(b"\xff" * 8 + ipv6_udp[:48])
    masked[8] |= 0x0F
    masked[9:12] = b"\xff\xff\xff"
    masked[15] = 0xFF
    masked[54:56] = b"\xff\xff"
    return crc32(masked) ^ RESERVED_FIX


def packet_icrc(ipv6_udp: bytes, rest: bytes) -> bytes:
    """Return the four ICRC bytes of a packet: `rest` is all from the BTH up to, not including, the ICRC."""
    masked = bytearray(rest)
    masked[4] = 0
    return crc32(masked, prefix_crc(ipv6_udp)).to_bytes(4, "little")
