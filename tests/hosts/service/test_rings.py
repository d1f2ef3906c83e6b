"""Memory shared by the NIC service and a program: its layout, wrong counters, and its fixed size."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from mrclab.hosts.service.shared_memory import (
    RECORDS,
    WORDS,
    CompletionRing,
    RingError,
    SharedMemory,
    WorkRings,
    header,
    power_of_two,
    record,
)


def _post(rings: WorkRings, number: int, wr_id: int) -> None:
    size = record("work").size
    at = WORDS["QP_RING_OFFSET"] + (number % rings.send_slots) * size
    record("work").pack_into(rings.memory.map, at, wr_id, 0, 0, 0, 0, 0, 0, 0, b"")
    rings.memory.words[WORDS["QP_SQ_PROD"]] = number + 1


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (apt install gcc)")
def test_records_have_one_layout_in_c_and_python(tmp_path: Path) -> None:
    """The C compiler and Python's struct must give every field the same offset."""
    lines = [header(), "#include <stddef.h>", "#include <stdio.h>", "int main(void) {"]
    wanted = []
    for name, fields in RECORDS.items():
        codes = ""
        for field, code in fields:
            offset = struct.calcsize(f"={codes}")
            lines.append(f'printf("%zu\\n", offsetof(struct wire_{name}, {field}));')
            wanted.append(offset)
            codes += code
    source = tmp_path / "offsets.c"
    source.write_text("\n".join([*lines, "return 0; }"]))
    subprocess.run(["cc", "-o", tmp_path / "offsets", source], check=True)
    done = subprocess.run([tmp_path / "offsets"], capture_output=True, text=True, check=True)
    assert [int(line) for line in done.stdout.split()] == wanted


def test_every_record_is_a_multiple_of_eight_bytes() -> None:
    assert [name for name in RECORDS if record(name).size % 8] == []


def test_requests_come_out_in_order_around_the_end_of_the_ring() -> None:
    rings = WorkRings(3, 1)
    assert rings.send_slots == 4
    for number in range(10):
        _post(rings, number, 100 + number)
        assert rings.posted() == 1
        assert rings.take()[0] == 100 + number
    assert rings.posted() == 0
    rings.memory.close()


@pytest.mark.parametrize("claimed", [5, 1 << 31, 0xFFFFFFFF])
def test_a_counter_that_lies_is_an_error(claimed: int) -> None:
    rings = WorkRings(4, 4)
    rings.memory.words[WORDS["QP_SQ_PROD"]] = claimed
    with pytest.raises(RingError):
        rings.posted()
    rings.memory.words[WORDS["QP_RQ_PROD"]] = claimed
    with pytest.raises(RingError):
        rings.take_receive()
    rings.memory.close()


def test_a_completion_queue_that_nobody_polls_is_overrun_and_keeps_what_it_has() -> None:
    ring = CompletionRing(1, 2, None)
    assert [ring.push(n, 1, 0, 1, 0, 0, 0, n, 0) for n in range(3)] == [True, True, False]
    assert ring.memory.words[WORDS["CQ_OVERRUN"]] == 1
    ring.memory.words[WORDS["CQ_CONS"]] = 1
    assert ring.push(3, 1, 0, 1, 0, 0, 0, 3, 0)
    ring.memory.close()


@pytest.mark.parametrize(
    ("armed", "status", "solicited", "due"),
    [(0, 0, True, False), (1, 0, False, True), (2, 0, False, False), (2, 0, True, True), (2, 5, False, True)],
)
def test_an_event_is_due_once_for_what_was_asked_for(
    armed: int, status: int, solicited: bool, due: bool
) -> None:
    ring = CompletionRing(1, 4, 0)
    ring.memory.words[WORDS["CQ_ARMED"]] = armed
    ring.push(1, 1, status, 1, 0, 0, 0, 1, 0, solicited=solicited)
    assert ring.event_due() is due
    ring.push(1, 1, status, 1, 0, 0, 0, 1, 0, solicited=solicited)
    assert ring.event_due() is False or (armed == 2 and not due)
    ring.memory.close()


def test_a_program_cannot_change_the_size_of_shared_memory() -> None:
    memory = SharedMemory(100)
    assert memory.size_bytes == mmap.PAGESIZE
    for size in (0, 2 * mmap.PAGESIZE):
        with pytest.raises(PermissionError):
            os.ftruncate(memory.fd, size)
    memory.close()


@pytest.mark.parametrize(("count", "power"), [(1, 1), (2, 2), (3, 4), (8192, 8192), (8193, 16384)])
def test_rings_have_a_power_of_two_of_slots(count: int, power: int) -> None:
    assert power_of_two(count) == power
