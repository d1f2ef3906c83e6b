"""Memory is moved into huge pages if the kernel can do it, and its content stays the same."""

from __future__ import annotations

import hashlib

import pytest

from mrclab.linux import system
from mrclab.linux.system import HUGE_BYTES, own_memory, use_huge_pages

MAPS = """\
00200000-00700000 rw-p 00000000 00:00 0
00801000-00a00000 rw-p 00000000 00:00 0                                  [heap]
00b00000-01100000 rw-p 00000000 00:00 0                                  [heap]
02000000-03000000 r--p 00000000 00:00 0
04000000-05000000 rw-s 00000000 00:01 77                                 /memfd:shared (deleted)
06000000-07000000 rw-p 00001000 08:01 9                                  /usr/lib/libc.so.6
7f0000000000-7f0000a00000 rw-p 00000000 00:00 0                          [stack]
"""


def test_only_whole_pages_of_memory_of_our_own_are_moved() -> None:
    assert own_memory(MAPS) == [(0x200000, 2 * HUGE_BYTES), (0xC00000, 2 * HUGE_BYTES)]


def test_memory_is_the_same_afterwards() -> None:
    data = bytearray(range(256)) * (8 * HUGE_BYTES // 256)
    before = hashlib.sha256(data).digest()
    use_huge_pages()
    assert hashlib.sha256(data).digest() == before


def test_where_there_is_no_linux_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "is_linux", lambda: False)
    assert not use_huge_pages()
