"""The one thing needed of an ELF file: the bytes of a section (64-bit little-endian, elf(5))."""

from __future__ import annotations

import struct

from mrclab.linux.errors import SwitchError


def section(data: bytes, name: str) -> bytes:
    """Return the content of section `name`. Raises SwitchError if the file is no such ELF or lacks it."""
    try:
        if data[:6] != b"\x7fELF\x02\x01":
            raise SwitchError("not a 64-bit little-endian ELF file")
        (table,) = struct.unpack_from("<Q", data, 40)
        size, count, names = struct.unpack_from("<HHH", data, 58)
        headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
        strings = headers[names][4]
        for name_at, _, _, _, offset, length in headers:
            end = data.index(b"\0", strings + name_at)
            if data[strings + name_at : end] == name.encode():
                return data[offset : offset + length]
    except (struct.error, IndexError, ValueError) as exc:
        raise SwitchError(f"damaged ELF file: {exc}") from exc
    raise SwitchError(f"no section {name} in the object file")
