"""The recorder: captures at the hosts, clock offsets and the machine's load, for one repetition.

A capture is a tcpdump process in the namespace of a host, or a tap (`mrclab.experiments.live.captures.tap`).
Captures do not depend on the agents. All files are written into the repetition's directory.
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

SNAPLEN = 192  # bytes: room for SLL2 (20), two IPv6 headers (80), UDP (8), BTH to RETH (36), an SRH
# Size (KiB) of the ring buffer between kernel and tcpdump: room for one second at 150,000 packets/s.
BUFFER_KIB = 32 * 1024
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
    """tcpdump could not be started or did not end properly. The message contains tcpdump's message."""


def parse_counts(stderr: str) -> CaptureCounts:
    """Return the counts in tcpdump's closing lines. Raise CaptureError if they are missing."""
    found = {name: int(count) for count, name in _COUNT.findall(stderr)}
    if "captured" not in found:
        raise CaptureError(f"tcpdump gave no counts: {_complaint(stderr)}")
    dropped = found.get("dropped by kernel", 0) + found.get("dropped by interface", 0)
    return CaptureCounts(found["captured"], found.get("received by filter", 0), dropped)


def _complaint(text: str) -> str:
    """Return the last line of tcpdump's own messages, or the last line of ``text`` if there are none."""
    lines = [line for line in text.splitlines() if line.strip()]
    own = [line.removeprefix("tcpdump: ") for line in lines if line.startswith("tcpdump: ")]
    return [*own, *lines[-1:]][max(len(own) - 1, 0)] if lines else "it said nothing"


def tcpdump_command(file: Path, *, interface: str = "any", expression: str = "ip6") -> list[str]:
    """Return the command line of a capture into a file.

    Debian needs ``-Z root``. Without it, tcpdump would drop its privileges and could not write the file.
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
    """A running tcpdump process. ``start`` makes it, and returns when packets are being recorded."""

    def __init__(self, process: subprocess.Popen[bytes], file: Path, heard: bytes) -> None:
        self._process = process
        self._heard = heard
        self.file = file

    @property
    def offset_ns(self) -> int | None:
        """Return None: tcpdump's times are of CLOCK_REALTIME, whose offset is not fixed."""
        return None

    @property
    def pid(self) -> int:
        """The process id, with which the caller can watch how the process is scheduled."""
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
        """Start tcpdump and wait until it records.

        ``prefix`` is put before the command, to run it in a namespace (``ip netns exec h0``, ``mnexec -a
        PID``). The prefix must exec the command, so that signals reach tcpdump. ``spawn`` replaces the
        function that starts the process, which must have a pipe for stderr. If tcpdump cannot record, raise
        CaptureError with its message.
        """
        command = [*prefix, *tcpdump_command(file, interface=interface, expression=expression)]
        try:
            process = (spawn or _spawn)(command)
        except OSError as error:
            raise CaptureError(f"cannot start {command[0]}: {error.strerror}") from None
        return cls(process, file, _wait_until_listening(process))

    def stop(self) -> CaptureCounts:
        """End the capture when all packets seen so far are in the file; return its counts.

        Raise CaptureError if tcpdump did not end properly.
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
        """Wait until tcpdump has read all packets that were in the ring buffer at the time of the call.

        After SIGINT tcpdump would drop the packets that it has not read. The kernel may hold packets back
        until a block of the ring buffer is full, for at most a second. So this method waits until tcpdump has
        read as many packets as the kernel had received. After SIGUSR1, tcpdump reports both numbers.
        """
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        wanted: int | None = None
        while True:
            counts = self._ask(deadline)
            if counts is None:
                return  # tcpdump has ended; its last message says why
            if wanted is None:
                wanted = counts.received
            if counts.captured + counts.dropped >= wanted:
                return
            if time.monotonic() > deadline:
                self.kill()
                raise CaptureError(f"tcpdump took {counts.captured} packets of {wanted} and no more")
            self._heard += _read_some(self._process, _DRAIN_PAUSE_S) or b""

    def _ask(self, deadline: float) -> CaptureCounts | None:
        """Return tcpdump's present counts, or None if tcpdump has ended."""
        said = len(self._heard)
        self._process.send_signal(signal.SIGUSR1)
        while not (lines := _COUNTS_NOW.findall(self._heard[said:])):
            if not self._read(max(deadline - time.monotonic(), 0)):
                return None
        captured, received, dropped = (int(count) for count in lines[-1])
        return CaptureCounts(captured, received, dropped)

    def _read(self, timeout_s: float) -> bool:
        """Read tcpdump's next message; return False if tcpdump ended. Raise CaptureError after a timeout."""
        piece = _read_some(self._process, timeout_s)
        if piece is None:
            self.kill()
            raise CaptureError(f"tcpdump did not answer within {_STOP_TIMEOUT_S:g} s")
        self._heard += piece
        return bool(piece)

    def kill(self) -> None:
        """End the capture at once, for a run that has failed. Do nothing if the capture has ended already."""
        self._process.kill()
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()


def _spawn(command: Sequence[str]) -> subprocess.Popen[bytes]:
    # Start a separate session, so that Ctrl-C reaches only the runner. The runner then stops the capture.
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _read_some(process: subprocess.Popen[bytes], timeout_s: float) -> bytes | None:
    """Return the next line of a process's stderr: empty if stderr is closed, None after a timeout."""
    stderr = process.stderr
    if stderr is None:
        raise CaptureError("the capture was started without a pipe for stderr")
    with selectors.DefaultSelector() as selector:
        selector.register(stderr, selectors.EVENT_READ)
        if not selector.select(timeout_s):
            return None
    return os.read(stderr.fileno(), 4096)


def _wait_until_listening(process: subprocess.Popen[bytes]) -> bytes:
    """Return tcpdump's output up to 'listening on', which it prints when its socket and filter are ready."""
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
    """The place where a tcpdump process runs. For ``prefix`` and ``spawn`` see `Capture.start`."""

    prefix: tuple[str, ...] = ()
    spawn: Spawn | None = None
    interface: str = "any"

    def start(self, file: Path) -> Capture:
        """Begin to record into a file. Raise CaptureError if tcpdump cannot record."""
        return Capture.start(file, prefix=self.prefix, spawn=self.spawn, interface=self.interface)


class RunningCapture(Protocol):
    """A running capture: `Capture` (tcpdump) or `mrclab.experiments.live.captures.tap.Tap`."""

    @property
    def offset_ns(self) -> int | None:
        """Return the recorded time minus the time of CLOCK_MONOTONIC.

        Return None if recorded times are of CLOCK_REALTIME.
        """

    def stop(self) -> CaptureCounts:
        """End the capture when all packets seen so far are in the file; return its counts."""

    def kill(self) -> None:
        """End the capture at once."""


class CaptureSource(Protocol):
    """Where to record packets: `TcpdumpSource` or `mrclab.experiments.live.captures.tap.TapSource`."""

    def start(self, file: Path) -> RunningCapture:
        """Begin to record into a file."""


def tcpdump_at(network: FabricNetwork, host: str) -> TcpdumpSource:
    """Return the source that records all packets at a host's NIC."""

    def spawn(command: Sequence[str]) -> subprocess.Popen[bytes]:
        nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
        return network.spawn(host, command, stdin=nothing, stdout=nothing, stderr=pipe)

    return TcpdumpSource(spawn=spawn)


class Recorder:
    """Record a repetition. A context manager: inside the ``with`` all packets are captured.

    ``pids`` are the processes whose waiting time for a CPU is measured. ``stalls`` are the processes that are
    watched for stops; the default is ``pids``. ``beats`` returns the reports of the endpoints. Call ``mark``
    before each trial and after the last one; the load of trial i is measured from mark i to mark i + 1. An
    exception in the ``with`` ends the captures at once. Packets are written to ``captures/<host>.pcap`` in
    the directory, all other data to ``recording.json``.

    Raise CaptureError if a capture cannot be started or did not end properly.
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
        """Return the file with the packets of a source."""
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
        """Watch more processes, beginning with the next call of `mark`."""
        self._pids |= pids
        self._stalls.add(pids)

    def mark(self) -> None:
        """Mark the end of a trial and the start of the next: read the machine's counters and a clock offset.

        A mark takes about 0.2 ms.
        """
        self._note_offset(reads=200)
        now = take_snapshot(self._pids, stopped_ns=self._stalls.stopped_ns(), beats=self._beats())
        if self._last is not None:
            self._loads.append(compared(load_between(self._last, now), self._usual))
        self._last = now

    def last_load(self) -> Load:
        """Return the load between the last two calls of `mark`. Raise IndexError before the second call."""
        return self._loads[-1]

    def amend(self, load: Load) -> None:
        """Replace the load between the last two calls of `mark` by ``load``."""
        self._loads[-1] = load

    def take_as_usual(self) -> None:
        """Use the load between the last two calls of `mark` as a normal load in later comparisons."""
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
        """Return the recording. Raise RuntimeError if the recording has not ended yet."""
        if self._recording is None:
            raise RuntimeError("the recording is not over")
        return self._recording
