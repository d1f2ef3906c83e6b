"""Run a hostile program on a host of a fabric, next to correct programs that must keep working."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.command import Up
from tests.support.native_programs import SOURCES, end, running, service

HOST, PEER = "h0", "h2"
PORT = "18519"
SIZE = "16384"


@dataclass(frozen=True)
class Attack:
    """The outcome of an attack, for the hostile program, the correct programs and the NIC service."""

    sessions: int
    ended: int
    queue_pairs: int
    entries: int
    sound_runs: int
    """The number of pairs of correct programs that ended during the attack with correct data."""
    descriptors: tuple[int, int]
    """The service's number of file descriptors before and after the attack."""
    resident_bytes: tuple[int, int]


def attack(up: Up, pair: Path, entries: int, seed: int, messages: int) -> Attack:
    """Attack a host's NIC service while correct programs write ``messages`` messages again and again.

    Raise AssertionError if a correct program fails, or if the service's process has changed.
    """
    work(up, pair, 8)  # this starts the services
    pid = service(up, HOST)
    before = usage(pid)
    words = (sys.executable, str(SOURCES / "hostile.py"), str(entries), str(seed), PEER)
    runs = 0
    with running(up, HOST, "--", *words) as hostile:
        while hostile.poll() is None:
            work(up, pair, messages)
            runs += 1
        said = end(hostile)
    assert hostile.returncode == 0, said
    work(up, pair, messages)
    assert service(up, HOST) == pid
    descriptors, resident = zip(before, usage(pid), strict=True)
    return Attack(**json.loads(said), sound_runs=runs, descriptors=descriptors, resident_bytes=resident)


def work(up: Up, pair: Path, messages: int) -> None:
    """Let a program write messages to another, which checks every byte. Assert that both succeed."""
    words = ("--", str(pair))
    with (
        running(up, PEER, *words, "server", PORT, SIZE, str(messages)) as reader,
        running(up, HOST, *words, "client", PORT, SIZE, str(messages), PEER) as writer,
    ):
        said = [end(process) for process in (writer, reader)]
    assert [writer.returncode, reader.returncode] == [0, 0], said


def usage(pid: int) -> tuple[int, int]:
    """Return a process's number of file descriptors and its resident memory in bytes."""
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return len(os.listdir(f"/proc/{pid}/fd")), resident
