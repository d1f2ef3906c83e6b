"""The hash functions that a P4 program can use, as functions of a byte string.

These functions return the same results as src/bm_sim/calculations.cpp of p4lang/behavioral-model. So a
program gets the same hashes on every target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Crc:
    """The parameters of a CRC. If `reflected` is true, the lowest bit of each byte comes first."""

    width: int
    polynomial: int
    initial: int
    final: int
    reflected: bool


# Parameters of v1model's CRCs. BMv2's CLI can change the parameters of a `_custom` CRC.
CRCS = {
    "crc16": Crc(16, 0x8005, 0, 0, True),
    "crc16_custom": Crc(16, 0x8005, 0, 0, True),
    "crc32": Crc(32, 0x04C11DB7, 0xFFFFFFFF, 0xFFFFFFFF, True),
    "crc32_custom": Crc(32, 0x04C11DB7, 0xFFFFFFFF, 0xFFFFFFFF, True),
    "crcCCITT": Crc(16, 0x1021, 0xFFFF, 0, False),
}


def _reflect(value: int, width: int) -> int:
    return int(f"{value:0{width}b}"[::-1], 2)


def crc(kind: Crc, data: bytes) -> int:
    """Return the CRC of a byte string, computed bit by bit."""
    top, mask, rest = 1 << (kind.width - 1), (1 << kind.width) - 1, kind.initial
    for byte in data:
        rest ^= (_reflect(byte, 8) if kind.reflected else byte) << (kind.width - 8)
        for _ in range(8):
            rest = (rest << 1 ^ (kind.polynomial if rest & top else 0)) & mask
    return (_reflect(rest, kind.width) if kind.reflected else rest) ^ kind.final


def _words(data: bytes) -> list[int]:
    padded = data + bytes(len(data) % 2)
    return [int.from_bytes(padded[i : i + 2], "big") for i in range(0, len(padded), 2)]


def checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    total = sum(_words(data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def xor16(data: bytes) -> int:
    """Return the XOR of all 16-bit words. If the number of bytes is odd, a zero byte is added."""
    result = 0
    for word in _words(data):
        result ^= word
    return result


def identity(data: bytes) -> int:
    """Return the first eight bytes as a number."""
    return int.from_bytes(data[:8], "big")


def _crc_of(kind: Crc) -> Callable[[bytes], int]:
    return lambda data: crc(kind, data)


HASHES: dict[str, Callable[[bytes], int]] = {
    **{name: _crc_of(kind) for name, kind in CRCS.items()},
    "csum16": checksum,
    "cksum16": checksum,
    "xor16": xor16,
    "identity": identity,
}
