"""The recorder: captures at the hosts, clock offsets and the machine's load, in a repetition's directory."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from mrclab.experiments.live.captures.capture import Capture, Spawn
from mrclab.experiments.measure.clock import OffsetSample, measure_offset
from mrclab.experiments.measure.load import Load, compared, load_between
from mrclab.experiments.measure.machine import Beats, Snapshot, take_snapshot
from mrclab.experiments.measure.recording import CaptureCounts, Recording
from mrclab.linux.life.stalls import StallWatch
from mrclab.testbed.network import FabricNetwork

OFFSET_READS = 2000


@dataclass(frozen=True, slots=True)
class TcpdumpSource:
    """The place of a tcpdump: ``prefix`` goes before it and brings it into a namespace, or ``spawn`` does.

    See `mrclab.experiments.live.captures.capture.Capture.start`.
    """

    prefix: tuple[str, ...] = ()
    spawn: Spawn | None = None
    interface: str = "any"

    def start(self, file: Path) -> Capture:
        """Begin to record into a file. Raise CaptureError."""
        return Capture.start(file, prefix=self.prefix, spawn=self.spawn, interface=self.interface)


class RunningCapture(Protocol):
    """A capture that is going on: `Capture` (tcpdump) or `mrclab.experiments.live.captures.tap.Tap`."""

    @property
    def offset_ns(self) -> int | None:
        """Return by how much stamps are ahead of CLOCK_MONOTONIC; None if they are CLOCK_REALTIME's."""

    def stop(self) -> CaptureCounts:
        """End it once all packets seen are in the file, and return its counts."""

    def kill(self) -> None:
        """End it at once."""


class CaptureSource(Protocol):
    """Where to record packets: `TcpdumpSource` or `mrclab.experiments.live.captures.tap.TapSource`."""

    def start(self, file: Path) -> RunningCapture:
        """Begin to record into a file."""


def tcpdump_at(network: FabricNetwork, host: str) -> TcpdumpSource:
    """Return the source of all packets at a host's NIC."""

    def spawn(command: Sequence[str]) -> subprocess.Popen[bytes]:
        nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
        return network.spawn(host, command, stdin=nothing, stdout=nothing, stderr=pipe)

    return TcpdumpSource(spawn=spawn)


class Recorder:
    """Records a repetition. A context manager: inside it all packets are captured.

    ``pids`` names the processes whose waiting for a CPU is watched, ``stalls`` the processes that must not
    stand still (by default the same), ``beats`` returns the endpoints' own reports. Call ``mark`` before each
    trial and once after the last; the load of trial i is from mark i to mark i + 1. Leaving by an exception
    ends the captures at once. Packets go to ``captures/<host>.pcap`` of the directory, the rest to
    ``recording.json``.

    Raises CaptureError if a capture cannot be started or did not end in order.
    """

    def __init__(
        self,
        directory: Path,
        sources: Mapping[str, CaptureSource],
        pids: Mapping[str, int] | None = None,
        stalls: Mapping[str, int] | None = None,
        beats: Callable[[], Beats | None] = lambda: None,
    ) -> None:
        self._directory = directory
        self._stalls = StallWatch(pids or {} if stalls is None else stalls)
        self._sources = dict(sources)
        self._pids = dict(pids or {})
        self._captures: dict[str, RunningCapture] = {}
        self._offsets: list[OffsetSample] = []
        self._beats = beats
        self._last: Snapshot | None = None
        self._loads: list[Load] = []
        self._usual: list[Load] = []
        self._recording: Recording | None = None

    def __enter__(self) -> Self:
        (self._directory / "captures").mkdir(parents=True, exist_ok=True)
        try:
            for name, source in self._sources.items():
                self._captures[name] = source.start(self.file(name))
        except BaseException:
            self._kill()
            raise
        self._note_offset()
        self._stalls.__enter__()
        return self

    @property
    def files(self) -> dict[str, Path]:
        """Return the capture files by source."""
        return {name: self.file(name) for name in self._sources}

    def file(self, name: str) -> Path:
        """Return the file for the packets of a source."""
        return self._directory / "captures" / f"{name}.pcap"

    def _note_offset(self, reads: int = OFFSET_READS) -> None:
        if not self._captures:
            return
        fixed = {capture.offset_ns for capture in self._captures.values()}
        only = fixed.pop() if len(fixed) == 1 else None
        if only is None:
            self._offsets.append(measure_offset(reads))
        else:
            self._offsets.append(OffsetSample(time.monotonic_ns(), only, 0))

    def watch(self, pids: Mapping[str, int]) -> None:
        """Watch these processes as well, from the next mark on."""
        self._pids |= pids
        self._stalls.add(pids)

    def mark(self) -> None:
        """Mark a boundary between trials: read the machine's counters and a clock offset (some 0.2 ms)."""
        self._note_offset(reads=200)
        now = take_snapshot(self._pids, stopped_ns=self._stalls.stopped_ns(), beats=self._beats())
        if self._last is not None:
            self._loads.append(compared(load_between(self._last, now), self._usual))
        self._last = now

    def last_load(self) -> Load:
        """Return the load between the last two marks. Raise IndexError before the second."""
        return self._loads[-1]

    def amend(self, load: Load) -> None:
        """Replace the load between the last two marks by an amended one."""
        self._loads[-1] = load

    def take_as_usual(self) -> None:
        """Compare later loads with the one between the last two marks."""
        self._usual.append(self.last_load())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stalls.__exit__(kind, error, trace)
        if kind is not None:
            self._kill()
            return
        self._note_offset()
        try:
            counts = {name: capture.stop() for name, capture in self._captures.items()}
        except BaseException:
            self._kill()
            raise
        self._recording = Recording(counts, tuple(self._offsets), tuple(self._loads))
        text = json.dumps(self._recording.to_dict(), indent=2)
        (self._directory / "recording.json").write_text(text + "\n", encoding="utf-8", newline="\n")

    def _kill(self) -> None:
        for capture in self._captures.values():
            capture.kill()

    @property
    def recording(self) -> Recording:
        """Return the recording. Raise RuntimeError while it is not over."""
        if self._recording is None:
            raise RuntimeError("the recording is not over")
        return self._recording
