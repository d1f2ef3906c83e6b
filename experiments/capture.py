"""The recorder's ears: tcpdump in the namespaces of sender and receiver, apart from the agents it judges."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

SNAPLEN = 192  # SLL2 20, outer and inner IPv6 80, UDP 8, BTH to RETH 36, and room for an SRH
BUFFER_KIB = 32 * 1024  # of the ring shared with the kernel: a second of 150k packets/s
_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 30.0
_COUNT = re.compile(
    r"^(\d+) packets? (captured|received by filter|dropped by kernel|dropped by interface)", re.M
)

Spawn = Callable[[Sequence[str]], "subprocess.Popen[bytes]"]


class CaptureError(RuntimeError):
    """tcpdump could not be started or did not end as it should; the message carries its own words."""


@dataclass(frozen=True, slots=True)
class CaptureCounts:
    """What tcpdump said when it ended. A packet ``dropped`` was seen by the kernel and is not in the file."""

    captured: int
    received: int
    dropped: int

    @classmethod
    def parse(cls, stderr: str) -> CaptureCounts:
        """From tcpdump's closing lines. Raises CaptureError where they are missing."""
        found = {name: int(count) for count, name in _COUNT.findall(stderr)}
        if "captured" not in found:
            raise CaptureError(f"tcpdump gave no counts: {_last_line(stderr)}")
        dropped = found.get("dropped by kernel", 0) + found.get("dropped by interface", 0)
        return cls(found["captured"], found.get("received by filter", 0), dropped)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def tcpdump_command(file: Path, *, interface: str = "any", expression: str = "ip6") -> list[str]:
    """The command line of a capture into a file.

    ``-Z root``: Debian's build gives up its rights after opening the interface and could then not write
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
        """Starts tcpdump and waits until it listens.

        ``prefix`` goes before the command and brings it into a namespace (``ip netns exec h0``, ``mnexec -a
        PID``); it must exec, so that signals reach tcpdump. ``spawn`` starts the command in a manner of the
        caller's own; it must give it a pipe for stderr. Raises CaptureError with tcpdump's complaint.
        """
        command = [*prefix, *tcpdump_command(file, interface=interface, expression=expression)]
        try:
            process = (spawn or _spawn)(command)
        except OSError as error:
            raise CaptureError(f"cannot start {command[0]}: {error.strerror}") from None
        return cls(process, file, _wait_until_listening(process))

    def stop(self) -> CaptureCounts:
        """Ends the capture and says what it saw. Raises CaptureError where tcpdump did not end in order."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            _, rest = self._process.communicate(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise CaptureError(f"tcpdump did not end within {_STOP_TIMEOUT_S:g} s of SIGINT") from None
        return CaptureCounts.parse((self._heard + (rest or b"")).decode(errors="replace"))

    def kill(self) -> None:
        """Ends it at once, for when the run has failed anyway. Harmless when it has ended."""
        self._process.kill()
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()


def _spawn(command: Sequence[str]) -> subprocess.Popen[bytes]:
    # a session of its own: Ctrl-C reaches the runner, which then stops the capture in order
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _wait_until_listening(process: subprocess.Popen[bytes]) -> bytes:
    """What tcpdump said up to its 'listening on' line, which it prints once the socket and filter stand."""
    stderr = process.stderr
    if stderr is None:
        raise CaptureError("the capture was started without a pipe for stderr")
    heard = b""
    deadline = time.monotonic() + _START_TIMEOUT_S
    with selectors.DefaultSelector() as selector:
        selector.register(stderr, selectors.EVENT_READ)
        while b"listening on" not in heard:
            if not selector.select(max(deadline - time.monotonic(), 0)):
                process.kill()
                process.communicate()
                raise CaptureError(f"tcpdump did not start listening within {_START_TIMEOUT_S:g} s")
            piece = os.read(stderr.fileno(), 4096)
            if not piece:
                process.communicate()
                raise CaptureError(f"tcpdump ended at once: {_last_line(heard.decode(errors='replace'))}")
            heard += piece
    return heard
