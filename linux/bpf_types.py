"""Plain values that describe BPF maps, and the marks that stand for maps in compiled code.

Nothing here calls the kernel, so a compiler may use it on any machine.
"""

from __future__ import annotations

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
