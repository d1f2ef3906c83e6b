"""The stack that a compiled program uses, of which it has 512 bytes (Documentation/bpf/verifier.rst)."""

from __future__ import annotations

import struct

LIMIT_BYTES = 512
_FRAME = 10  # r10, which points behind the stack
_ADDRESS = {1: "source", 2: "destination", 3: "destination"}  # by class: LDX, ST, STX


def beyond(code: bytes) -> list[int]:
    """Return the instructions that access memory below the stack's limit."""
    found = []
    for at in range(0, len(code), 8):
        opcode, registers, offset = struct.unpack_from("<BBh", code, at)
        side = _ADDRESS.get(opcode & 7)
        base = registers >> 4 if side == "source" else registers & 15
        if side is not None and base == _FRAME and offset < -LIMIT_BYTES:
            found.append(at // 8)
    return found
