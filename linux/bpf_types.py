"""BPF as plain values: descriptions of maps, placeholders for maps in code, and instructions.

Nothing here calls the kernel, so a compiler can use this module on any machine. The instructions are for
programs of about a dozen instructions, for which no compiler is needed. An instruction has eight bytes:
opcode, destination and source register, offset, immediate [RFC 9669, section 3].
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

PSEUDO_MAP_FD = 1
PSEUDO_MAP_VALUE = 2
MAP_MARK = 0x4D50_0000
"""The placeholder for map 0. For map n it is MAP_MARK + n. `linux.bpf.relocate` replaces all placeholders."""


class MapType(IntEnum):
    """The map types that mrclab uses, by their number in bpf(2)."""

    HASH = 1
    ARRAY = 2
    PROG_ARRAY = 3
    PERCPU_ARRAY = 6
    LPM_TRIE = 11
    RINGBUF = 27


NO_PREALLOC, MMAPABLE = 1, 1 << 10


@dataclass(frozen=True)
class MapSpec:
    """A map to create.

    A map with `shared` is created once for all switches that run the program. A map with `lock` has a
    bpf_spin_lock at the start of its value. The kernel requires a BTF description of such a value. `initial`
    is the first value of element 0 of an array. Without `initial`, element 0 is all zeros.
    """

    name: str
    type: MapType
    key_size: int
    value_size: int
    max_entries: int
    flags: int = 0
    shared: bool = False
    lock: bool = False  # more data may follow the lock; then the kernel can update the value under the lock
    initial: bytes | None = None


INSN_BYTES = 8
CONTEXT = 1
"""The register that holds the frame's context when the program starts."""
RESULT = 0
"""The register of the return value, both of a helper and of the program."""
GET_PRANDOM_U32, REDIRECT, SET_HASH_INVALID = 7, 23, 41
"""Helpers of the kernel, by their numbers in linux/bpf.h."""


def _insn(code: int, dst: int = 0, src: int = 0, offset: int = 0, imm: int = 0) -> bytes:
    return struct.pack("<BBhI", code, src << 4 | dst, offset, imm & 0xFFFFFFFF)


def put(register: int, value: int) -> bytes:
    """Return the code of ``register = value``, where ``value`` is a signed number of 32 bits."""
    return _insn(0xB7, register, imm=value)


def copy(to: int, register: int) -> bytes:
    """Return the code of ``to = register``."""
    return _insn(0xBF, to, register)


def load_word(to: int, base: int, offset: int) -> bytes:
    """Return the code of ``to = *(u32 *)(base + offset)``."""
    return _insn(0x61, to, base, offset)


def store_word(base: int, offset: int, register: int) -> bytes:
    """Return the code of ``*(u32 *)(base + offset) = register``."""
    return _insn(0x63, base, register, offset)


def unless_equal(register: int, value: int, body: bytes) -> bytes:
    """Return code that runs ``body`` if the lower half of the register is not equal to ``value``."""
    return _insn(0x16, register, offset=len(body) // INSN_BYTES, imm=value) + body


def if_below(register: int, value: int, body: bytes) -> bytes:
    """Return code that runs ``body`` if the lower half of the register, unsigned, is less than ``value``."""
    return _insn(0x36, register, offset=len(body) // INSN_BYTES, imm=value) + body


def call(helper: int) -> bytes:
    """Return code that calls a helper. The helper reads and destroys registers 1 to 5, and sets `RESULT`."""
    return _insn(0x85, imm=helper)


def leave(value: int | None = None) -> bytes:
    """Return code that ends the program with ``value``, or with the present content of `RESULT`."""
    return (b"" if value is None else put(RESULT, value)) + _insn(0x95)
