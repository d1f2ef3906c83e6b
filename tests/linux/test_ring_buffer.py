"""The reader of a ring buffer, on a file with the kernel's layout."""

from __future__ import annotations

import mmap
import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from mrclab.linux.ring_buffer import RECORD_HEADER, RingReader

SIZE = 1 << 16
DATA = 24
RECORD = RECORD_HEADER + DATA
PAGE = mmap.PAGESIZE


class Ring:
    """Imitates the kernel's part of a ring buffer, as far as a reader can see it."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("ring")
        os.ftruncate(self.fd, 2 * PAGE + 2 * SIZE)
        self.memory = mmap.mmap(self.fd, 2 * PAGE + 2 * SIZE)
        self.positions = memoryview(self.memory).cast("Q")

    def put(self, data: bytes) -> None:
        """Add a record."""
        at = self.positions[PAGE // 8]
        for start in (2 * PAGE + at % SIZE, 2 * PAGE + at % SIZE + SIZE):
            record = len(data).to_bytes(RECORD_HEADER, "little") + data
            room = len(self.memory) - start
            self.memory[start : start + min(len(record), room)] = record[:room]
        self.positions[PAGE // 8] = at + RECORD

    def close(self) -> None:
        self.positions.release()
        self.memory.close()
        os.close(self.fd)


@pytest.fixture
def ring() -> Iterator[Ring]:
    made = Ring()
    yield made
    made.close()


def test_records_come_once_and_in_order_round_and_round(ring: Ring) -> None:
    reader = RingReader(ring.fd, SIZE)
    for turn in range(40):
        sent = [bytes([turn, n]) * (DATA // 2) for n in range(100)]
        for data in sent:
            ring.put(data)
        if turn % 2:
            assert list(reader.records()) == sent
        else:
            [piece] = [bytes(piece) for piece in reader.pieces(RECORD)]
            assert [piece[i : i + DATA] for i in range(RECORD_HEADER, len(piece), RECORD)] == sent
        assert list(reader.records()) == list(reader.pieces(RECORD)) == []
    reader.close()


def _watch(fd: int, told: Connection) -> None:
    """Watch the consumer's position until a message arrives. Send how often it went back."""
    with mmap.mmap(fd, PAGE, mmap.MAP_SHARED, mmap.PROT_READ) as memory:
        view, last, back = memoryview(memory).cast("Q"), 0, 0
        told.send("watching")
        while not told.poll():
            for _ in range(1000):
                now = view[0]
                back += now < last
                last = now
        told.send(back)
        view.release()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["records", "pieces"])
def test_the_kernel_never_sees_the_consumers_position_go_back(ring: Ring, way: str) -> None:
    """A position of 0, even for a moment, makes the kernel see a full ring and drop records."""
    ours, theirs = multiprocessing.Pipe()
    watcher = multiprocessing.get_context("fork").Process(target=_watch, args=(ring.fd, theirs))
    watcher.start()
    assert ours.recv() == "watching"
    reader = RingReader(ring.fd, SIZE)
    for _ in range(20_000):
        ring.put(bytes(DATA))
        taken = reader.records() if way == "records" else reader.pieces(RECORD)
        assert len(list(taken)) == 1
    ours.send("end")
    assert ours.recv() == 0
    watcher.join()
    reader.close()
