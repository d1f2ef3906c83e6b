"""A hostile program on a host of a fabric, while sound programs of the host have to go on."""

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
    """The outcome of an attack, for the hostile program, the sound ones and the NIC service."""

    sessions: int
    ended: int
    queue_pairs: int
    entries: int
    sound_runs: int
    """Pairs of sound programs that ended in that time, with every byte right."""
    descriptors: tuple[int, int]
    """Of the service, before and after."""
    resident_bytes: tuple[int, int]


def attack(up: Up, pair: Path, entries: int, seed: int, messages: int) -> Attack:
    """Attack a host's NIC service while programs there write ``messages`` again and again.

    Raise AssertionError if one of them fails, or if another process is the service afterwards.
    """
    work(up, pair, 8)  # starts the services
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
    """Let a pair of programs write; each checks itself, and the reader every byte."""
    words = ("--", str(pair))
    with (
        running(up, PEER, *words, "server", PORT, SIZE, str(messages)) as reader,
        running(up, HOST, *words, "client", PORT, SIZE, str(messages), PEER) as writer,
    ):
        said = [end(process) for process in (writer, reader)]
    assert [writer.returncode, reader.returncode] == [0, 0], said


def usage(pid: int) -> tuple[int, int]:
    """Return a process's descriptors and its resident memory, in bytes."""
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return len(os.listdir(f"/proc/{pid}/fd")), resident
