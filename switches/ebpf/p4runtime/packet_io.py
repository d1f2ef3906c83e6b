"""Packet-in and packet-out: the CPU port, and its frames as stream messages.

The CPU port of a switch is a TAP device (tun(4)): the server reads and writes its frames. For the P4 program
it is a normal port. The kernel removes the port when the process ends, even after SIGKILL. Each of the port's
frames begins with a header, which holds the fields of `packet_in` or `packet_out` of the P4Info
(specification, section 16.1).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from finsy.proto import p4i, p4r

from mrclab.linux.errors import MachineError
from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError
from mrclab.switches.ebpf.p4runtime.values import decode, encode

_DEVICE = Path("/dev/net/tun")
_TUNSETIFF = 0x400454CA
_TAP, _NO_INFORMATION = 0x0002, 0x1000
_SET_FLAGS, _SET_MTU, _SET_QUEUE = 0x8914, 0x8922, 0x8943
_UP, _NOARP = 0x1, 0x80
_MTU = 16_000  # enough for a frame of 9,216 bytes with a long controller header
_LARGEST = 65536
SHORTEST = 14  # the kernel accepts no frame that is shorter than an Ethernet header (14 bytes)
_QUEUED = 1000  # maximum number of frames that may wait until the server reads them


class CpuPort:
    """A TAP device in the current network namespace. Raise MachineError if it cannot be created.

    `frames` yields the frames that the switch sends to this port. `send` makes a frame arrive on this port.
    """

    def __init__(self) -> None:
        try:
            self._fd = os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK)
        except OSError as exc:
            raise MachineError(
                f"a CPU port needs {_DEVICE} (CONFIG_TUN, module tun): {exc.strerror}"
            ) from exc
        try:
            request = struct.pack("=16sH22x", b"mrccpu%d", _TAP | _NO_INFORMATION)
            made = fcntl.ioctl(self._fd, _TUNSETIFF, request)
            self.name = made[:16].rstrip(b"\0").decode()
            self._set_up()
        except OSError as exc:
            os.close(self._fd)
            raise MachineError(f"a CPU port cannot be made: {exc.strerror}") from exc

    def _set_up(self) -> None:
        name = self.name.encode()
        # Disable IPv6. Otherwise the kernel sends its neighbour discovery packets to the switch.
        with contextlib.suppress(OSError):
            Path(f"/proc/sys/net/ipv6/conf/{self.name}/disable_ipv6").write_text("1")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            fcntl.ioctl(s, _SET_MTU, struct.pack("=16si20x", name, _MTU))
            fcntl.ioctl(s, _SET_QUEUE, struct.pack("=16si20x", name, _QUEUED))
            fcntl.ioctl(s, _SET_FLAGS, struct.pack("=16sH22x", name, _UP | _NOARP))

    def fileno(self) -> int:
        """Return the file descriptor, which an event loop can wait for."""
        return self._fd

    def frames(self, most: int) -> Iterator[bytes]:
        """Yield up to `most` frames that the switch has sent. Do not wait for more."""
        for _ in range(most):
            try:
                yield os.read(self._fd, _LARGEST)
            except OSError as exc:
                if exc.errno != errno.EAGAIN:
                    raise
                return

    def send(self, frame: bytes) -> None:
        """Send a frame of at least SHORTEST bytes to the switch. If the queue is full, the frame is lost."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._fd, frame)

    def close(self) -> None:
        """Remove the device."""
        os.close(self._fd)


PACKET_IN, PACKET_OUT = "packet_in", "packet_out"


def _bad(message: str) -> P4RuntimeError:
    return P4RuntimeError(Code.INVALID_ARGUMENT, message)


@dataclass(frozen=True)
class ControllerHeader:
    """A controller header: (id, name, width in bits) of its fields. Without fields it has no bytes."""

    name: str
    fields: tuple[tuple[int, str, int], ...] = ()

    @property
    def size(self) -> int:
        """The size of the header in bytes."""
        return (sum(width for _, _, width in self.fields) + 7) // 8

    def read(self, frame: bytes) -> p4r.PacketIn | None:
        """Return the packet-in for a frame that begins with this header; None if the frame is too short."""
        if len(frame) < self.size:
            return None
        out = p4r.PacketIn(payload=frame[self.size :])
        whole, rest = int.from_bytes(frame[: self.size], "big"), self.size * 8
        for number, _, width in self.fields:
            rest -= width
            out.metadata.add(metadata_id=number, value=encode(whole >> rest & ((1 << width) - 1)))
        return out

    def write(self, packet: p4r.PacketOut) -> bytes:
        """Return the frame of a packet-out. Raise P4RuntimeError if its metadata is invalid."""
        given: dict[int, bytes] = {}
        known = {number for number, _, _ in self.fields}
        for m in packet.metadata:
            if m.metadata_id not in known:
                raise _bad(f"{self.name} has no metadata {m.metadata_id}")
            if m.metadata_id in given:
                raise _bad(f"metadata {m.metadata_id} of {self.name} is given twice")
            given[m.metadata_id] = m.value
        whole, rest = 0, self.size * 8
        for number, name, width in self.fields:
            if number not in given:
                raise _bad(f"metadata {name} of {self.name} is missing")
            rest -= width
            try:
                whole |= decode(given[number], width, f"{self.name}, {name}") << rest
            except P4RuntimeError as exc:
                raise _bad(exc.message) from exc
        frame = whole.to_bytes(self.size, "big") + packet.payload
        if len(frame) < SHORTEST:
            raise _bad(f"a packet-out of {len(frame)} bytes with its header: it takes {SHORTEST} at least")
        return frame


def controller_headers(info: p4i.P4Info) -> dict[str, ControllerHeader]:
    """Return a P4Info's controller headers by name. Raise P4RuntimeError for unsupported headers."""
    out = {name: ControllerHeader(name) for name in (PACKET_IN, PACKET_OUT)}
    for header in info.controller_packet_metadata:
        name = header.preamble.name
        if name not in out:
            raise _bad(f"controller header {name} is neither {PACKET_IN} nor {PACKET_OUT}")
        for m in header.metadata:
            if m.bitwidth <= 0:
                raise _bad(
                    f"metadata {m.name} of {name} that is not a number is not supported by this target"
                )
        out[name] = ControllerHeader(name, tuple((m.id, m.name, m.bitwidth) for m in header.metadata))
    return out
