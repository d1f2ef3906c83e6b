"""BPF in plain values: descriptions of maps, marks that stand for maps in code, and instructions.

Nothing here calls the kernel, so a compiler may use it on any machine. Instructions are for programs of a
dozen of them that no compiler is worth starting for. Each is eight bytes: opcode, destination and source
register, offset, immediate [RFC 9669, section 3].
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

PSEUDO_MAP_FD = 1
PSEUDO_MAP_VALUE = 2
MAP_MARK = 0x4D50_0000
"""Plus a map's number: compiled code holds it until `mrclab.linux.bpf.relocate` puts the descriptor there."""


class MapType(IntEnum):
    """The map types used here, by their number in bpf(2)."""

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

    A `shared` one is created once for all switches that run the program. The value of one with `lock` is a
    bpf_spin_lock, which the kernel wants described by BTF. `initial` is what element 0 of an array holds at
    first, where that is not zeros.
    """

    name: str
    type: MapType
    key_size: int
    value_size: int
    max_entries: int
    flags: int = 0
    shared: bool = False
    lock: bool = False  # also with more behind the lock: then it can be updated under it
    initial: bytes | None = None


INSN_BYTES = 8
CONTEXT = 1
"""The register that holds the frame at the start."""
RESULT = 0
"""The register of the return value, of a call and of the program."""
GET_PRANDOM_U32, REDIRECT, SET_HASH_INVALID = 7, 23, 41
"""Helpers, by their numbers in linux/bpf.h."""


def _insn(code: int, dst: int = 0, src: int = 0, offset: int = 0, imm: int = 0) -> bytes:
    return struct.pack("<BBhI", code, src << 4 | dst, offset, imm & 0xFFFFFFFF)


def put(register: int, value: int) -> bytes:
    """``register = value``, a signed number of 32 bits."""
    return _insn(0xB7, register, imm=value)


def copy(to: int, register: int) -> bytes:
    """``to = register``."""
    return _insn(0xBF, to, register)


def load_word(to: int, base: int, offset: int) -> bytes:
    """``to = *(u32 *)(base + offset)``."""
    return _insn(0x61, to, base, offset)


def store_word(base: int, offset: int, register: int) -> bytes:
    """``*(u32 *)(base + offset) = register``."""
    return _insn(0x63, base, register, offset)


def unless_equal(register: int, value: int, body: bytes) -> bytes:
    """``body`` where the register's lower half is another value."""
    return _insn(0x16, register, offset=len(body) // INSN_BYTES, imm=value) + body


def if_below(register: int, value: int, body: bytes) -> bytes:
    """``body`` where the register's lower half, unsigned, is less than a value."""
    return _insn(0x36, register, offset=len(body) // INSN_BYTES, imm=value) + body


def call(helper: int) -> bytes:
    """Call a helper: it takes registers 1 to 5, which are lost, and answers in `RESULT`."""
    return _insn(0x85, imm=helper)


def leave(value: int | None = None) -> bytes:
    """End the program with a value, by default that of `RESULT`."""
    return (b"" if value is None else put(RESULT, value)) + _insn(0x95)
