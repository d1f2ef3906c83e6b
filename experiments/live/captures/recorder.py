"""The recorder: captures at the hosts, clock offsets and the machine's load, for one repetition.

Captures are tcpdump's, in the namespaces of sender and receiver, separate from the agents, or those of
`mrclab.experiments.live.captures.tap`. All goes into the repetition's directory.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from mrclab.experiments.measure.load import Beats, Load, Snapshot, compared, load_between, take_snapshot
from mrclab.experiments.measure.recording import (
    CaptureCounts,
    OffsetSample,
    Recording,
    crc32_of,
    measure_offset,
)
from mrclab.linux.errors import MrclabError
from mrclab.linux.process_watch import StallWatch
from mrclab.testbed.network import FabricNetwork

SNAPLEN = 192  # SLL2 20, outer and inner IPv6 80, UDP 8, BTH to RETH 36, and room for an SRH
BUFFER_KIB = 32 * 1024  # of the ring shared with the kernel: a second of 150k packets/s
_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 30.0
_DRAIN_PAUSE_S = 0.02
_COUNT = re.compile(
    r"^(\d+) packets? (captured|received by filter|dropped by kernel|dropped by interface)", re.M
)
_COUNTS_NOW = re.compile(
    rb"(\d+) packets? captured, (\d+) packets? received by filter, (\d+) packets? dropped by kernel"
)

Spawn = Callable[[Sequence[str]], "subprocess.Popen[bytes]"]


class CaptureError(MrclabError, RuntimeError):
    """tcpdump could not be started or did not end in order; the message has tcpdump's own text."""


def parse_counts(stderr: str) -> CaptureCounts:
    """Return the counts in tcpdump's closing lines. Raise CaptureError if they are missing."""
    found = {name: int(count) for count, name in _COUNT.findall(stderr)}
    if "captured" not in found:
        raise CaptureError(f"tcpdump gave no counts: {_complaint(stderr)}")
    dropped = found.get("dropped by kernel", 0) + found.get("dropped by interface", 0)
    return CaptureCounts(found["captured"], found.get("received by filter", 0), dropped)


def _complaint(text: str) -> str:
    """Return the last line that tcpdump marked as its own, else its last line."""
    lines = [line for line in text.splitlines() if line.strip()]
    own = [line.removeprefix("tcpdump: ") for line in lines if line.startswith("tcpdump: ")]
    return [*own, *lines[-1:]][max(len(own) - 1, 0)] if lines else "it said nothing"


def tcpdump_command(file: Path, *, interface: str = "any", expression: str = "ip6") -> list[str]:
    """Return the command line of a capture into a file.

    ``-Z root``: Debian's build drops its privileges after opening the interface and could then not write
    there.
    """
    link = ["-y", "LINUX_SLL2"] if interface == "any" else []
    limits = ["--snapshot-length", str(SNAPLEN), "--buffer-size", str(BUFFER_KIB)]
    stamps = ["--time-stamp-precision", "nano"]
    return [
        "tcpdump",
        "-i",
        interface,
        *link,
        "-n",
        *limits,
        *stamps,
        "-Z",
        "root",
        "-w",
        str(file),
        expression,
    ]


class Capture:
    """One running tcpdump. Made by ``start``, which returns when packets are being recorded."""

    def __init__(self, process: subprocess.Popen[bytes], file: Path, heard: bytes) -> None:
        self._process = process
        self._heard = heard
        self.file = file

    @property
    def offset_ns(self) -> int | None:
        """None: tcpdump's stamps are CLOCK_REALTIME's own."""
        return None

    @property
    def pid(self) -> int:
        """The process id, for watching how it is scheduled."""
        return self._process.pid

    @classmethod
    def start(
        cls,
        file: Path,
        *,
        prefix: Sequence[str] = (),
        spawn: Spawn | None = None,
        interface: str = "any",
        expression: str = "ip6",
    ) -> Capture:
        """Start tcpdump and wait until it listens.

        ``prefix`` goes before the command and brings it into a namespace (``ip netns exec h0``, ``mnexec -a
        PID``); it must exec, so that signals reach tcpdump. ``spawn`` starts the command in a manner of the
        caller's own; it must give it a pipe for stderr. Raise CaptureError with tcpdump's complaint.
        """
        command = [*prefix, *tcpdump_command(file, interface=interface, expression=expression)]
        try:
            process = (spawn or _spawn)(command)
        except OSError as error:
            raise CaptureError(f"cannot start {command[0]}: {error.strerror}") from None
        return cls(process, file, _wait_until_listening(process))

    def stop(self) -> CaptureCounts:
        """End the capture once all packets seen up to now are in the file; return its counts.

        Raise CaptureError if tcpdump did not end in order.
        """
        if self._process.poll() is None:
            self._drain()
            self._process.send_signal(signal.SIGINT)
        try:
            _, rest = self._process.communicate(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise CaptureError(f"tcpdump did not end within {_STOP_TIMEOUT_S:g} s of SIGINT") from None
        counts = parse_counts((self._heard + (rest or b"")).decode(errors="replace"))
        return replace(counts, crc32=crc32_of(self.file))

    def _drain(self) -> None:
        """Wait until tcpdump has read all packets that were in the ring at the time of the call.

        SIGINT makes it drop the rest, and the kernel hands the ring over in blocks, each when it is full or
        after a second. SIGUSR1 makes tcpdump report how many packets the kernel had for it and how many it
        has read.
        """
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        wanted: int | None = None
        while True:
            counts = self._ask(deadline)
            if counts is None:
                return  # it has ended; its last message has the reason
            if wanted is None:
                wanted = counts.received
            if counts.captured + counts.dropped >= wanted:
                return
            if time.monotonic() > deadline:
                self.kill()
                raise CaptureError(f"tcpdump took {counts.captured} packets of {wanted} and no more")
            self._heard += _read_some(self._process, _DRAIN_PAUSE_S) or b""

    def _ask(self, deadline: float) -> CaptureCounts | None:
        """Return tcpdump's counts now, or None if it has ended."""
        said = len(self._heard)
        self._process.send_signal(signal.SIGUSR1)
        while not (lines := _COUNTS_NOW.findall(self._heard[said:])):
            if not self._read(max(deadline - time.monotonic(), 0)):
                return None
        captured, received, dropped = (int(count) for count in lines[-1])
        return CaptureCounts(captured, received, dropped)

    def _read(self, timeout_s: float) -> bool:
        """Read tcpdump's next message; return False if it has ended. Raise CaptureError when late."""
        piece = _read_some(self._process, timeout_s)
        if piece is None:
            self.kill()
            raise CaptureError(f"tcpdump did not answer within {_STOP_TIMEOUT_S:g} s")
        self._heard += piece
        return bool(piece)

    def kill(self) -> None:
        """End the capture at once, for a run that has failed anyway. Does nothing once it has ended."""
        self._process.kill()
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()


def _spawn(command: Sequence[str]) -> subprocess.Popen[bytes]:
    # a separate session: Ctrl-C reaches the runner, which then stops the capture in order
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _read_some(process: subprocess.Popen[bytes], timeout_s: float) -> bytes | None:
    """Return the next line of a process's stderr: empty at its end, None if nothing comes in time."""
    stderr = process.stderr
    if stderr is None:
        raise CaptureError("the capture was started without a pipe for stderr")
    with selectors.DefaultSelector() as selector:
        selector.register(stderr, selectors.EVENT_READ)
        if not selector.select(timeout_s):
            return None
    return os.read(stderr.fileno(), 4096)


def _wait_until_listening(process: subprocess.Popen[bytes]) -> bytes:
    """Return tcpdump's output up to its 'listening on' line: then its socket and filter are in place."""
    heard = b""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while b"listening on" not in heard:
        piece = _read_some(process, max(deadline - time.monotonic(), 0))
        if piece:
            heard += piece
            continue
        process.kill()
        process.communicate()
        if piece is None:
            raise CaptureError(f"tcpdump did not start listening within {_START_TIMEOUT_S:g} s")
        raise CaptureError(f"tcpdump ended at once: {_complaint(heard.decode(errors='replace'))}")
    return heard


OFFSET_READS = 2000


@dataclass(frozen=True, slots=True)
class TcpdumpSource:
    """The place of a tcpdump: ``prefix`` goes before it and brings it into a namespace, or ``spawn`` does.

    See `mrclab.experiments.live.captures.recorder.Capture.start`.
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
