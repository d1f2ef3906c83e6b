"""The recorder: captures at both ends, the clock offset and the machine's load, in the run's directory."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from experiments.measure.clock import OffsetSample, measure_offset
from experiments.measure.recording import CaptureCounts, Recording
from experiments.measure.validity import Load, Snapshot, load_between, take_snapshot
from experiments.run.capture import Capture, Spawn
from testbed.network import FabricNetwork

SENDER, RECEIVER = "sender", "receiver"
OFFSET_READS = 2000


@dataclass(frozen=True, slots=True)
class Ear:
    """Where a capture listens: ``prefix`` goes before tcpdump and brings it into a namespace, or ``spawn``
    does.

    See `experiments.run.capture.Capture.start`.
    """

    prefix: tuple[str, ...] = ()
    spawn: Spawn | None = None
    interface: str = "any"

    def start(self, file: Path) -> Capture:
        """Begins to record into a file. Raises CaptureError."""
        return Capture.start(file, prefix=self.prefix, spawn=self.spawn, interface=self.interface)


class Listener(Protocol):
    """What records packets: `Capture` (tcpdump) or `experiments.run.tap.Tap`."""

    @property
    def offset_ns(self) -> int | None:
        """What CLOCK_REALTIME was ahead by, where stamps are CLOCK_MONOTONIC's moved by just that; None where
        they are CLOCK_REALTIME's own.
        """

    def stop(self) -> CaptureCounts:
        """Ends it, once all that it has seen is in the file, and says what it saw."""

    def kill(self) -> None:
        """Ends it at once."""


class Listens(Protocol):
    """Where to record packets, and how: `Ear` or `experiments.run.tap.TapEar`."""

    def start(self, file: Path) -> Listener:
        """Begins to record into a file."""


def ear_at(network: FabricNetwork, host: str) -> Ear:
    """An ear at all ports of a host's NIC."""

    def spawn(command: Sequence[str]) -> subprocess.Popen[bytes]:
        nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
        return network.spawn(host, command, stdin=nothing, stdout=nothing, stderr=pipe)

    return Ear(spawn=spawn)


class Recorder:
    """Records a run. A context manager: inside it everything is being captured.

    ``pids`` names the processes whose waiting for a CPU is watched. Call ``mark`` before each trial and
    once after the last; the load of trial i is from mark i to mark i + 1. Leaving by an exception ends the
    captures at once.

    Raises CaptureError where a capture cannot be started or did not end in order.
    """

    def __init__(
        self, directory: Path, ears: Mapping[str, Listens], pids: Mapping[str, int] | None = None
    ) -> None:
        self._directory = directory
        self._ears = dict(ears)
        self._pids = dict(pids or {})
        self._captures: dict[str, Listener] = {}
        self._offsets: list[OffsetSample] = []
        self._snapshots: list[Snapshot] = []
        self._recording: Recording | None = None

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            for name, ear in self._ears.items():
                self._captures[name] = ear.start(self._directory / f"{name}.pcap")
        except BaseException:
            self._kill()
            raise
        self._note_offset()
        return self

    def _note_offset(self, reads: int = OFFSET_READS) -> None:
        fixed = {capture.offset_ns for capture in self._captures.values()}
        only = fixed.pop() if len(fixed) == 1 else None
        if only is None:
            self._offsets.append(measure_offset(reads))
        else:
            self._offsets.append(OffsetSample(time.monotonic_ns(), only, 0))

    def watch(self, pids: Mapping[str, int]) -> None:
        """Watches these processes as well, from the next mark on."""
        self._pids |= pids

    def mark(self) -> None:
        """A boundary between trials: takes the machine's counters and another clock offset (some 0.2 ms)."""
        self._note_offset(reads=200)
        self._snapshots.append(take_snapshot(self._pids))

    def last_load(self) -> Load:
        """The load between the last two marks. Raises IndexError before the second."""
        return load_between(self._snapshots[-2], self._snapshots[-1])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._kill()
            return
        self._note_offset()
        try:
            counts = {name: capture.stop() for name, capture in self._captures.items()}
        except BaseException:
            self._kill()
            raise
        self._recording = Recording(counts, tuple(self._offsets), tuple(_loads(self._snapshots)))
        text = json.dumps(self._recording.to_dict(), indent=2)
        (self._directory / "recording.json").write_text(text + "\n", encoding="utf-8")

    def _kill(self) -> None:
        for capture in self._captures.values():
            capture.kill()

    @property
    def recording(self) -> Recording:
        """What was recorded. Raises RuntimeError while it is not over."""
        if self._recording is None:
            raise RuntimeError("the recording is not over")
        return self._recording


def _loads(snapshots: Sequence[Snapshot]) -> list[Load]:
    return [load_between(a, b) for a, b in pairwise(snapshots)]
