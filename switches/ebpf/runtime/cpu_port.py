"""The CPU port of a switch: a TAP device (tun(4)) whose other end is the server.

To the program it is a port like any other. It disappears with the process, also after a SIGKILL.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from mrclab.linux.errors import MachineError

_DEVICE = Path("/dev/net/tun")
_TUNSETIFF = 0x400454CA
_TAP, _NO_INFORMATION = 0x0002, 0x1000
_SET_FLAGS, _SET_MTU, _SET_QUEUE = 0x8914, 0x8922, 0x8943
_UP, _NOARP = 0x1, 0x80
_MTU = 16_000  # frames of 9,216 bytes with any controller header
_LARGEST = 65536
SHORTEST = 14  # bytes of an Ethernet header: the kernel takes no shorter frame
_QUEUED = 1000  # frames that wait to be read


class CpuPort:
    """A TAP device of the current network namespace, up and silent. Raises MachineError.

    Frames that go out by it are read here, frames written here come in by it.
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
        # The host must send nothing here by itself, such as neighbour discovery.
        with contextlib.suppress(OSError):
            Path(f"/proc/sys/net/ipv6/conf/{self.name}/disable_ipv6").write_text("1")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            fcntl.ioctl(s, _SET_MTU, struct.pack("=16si20x", name, _MTU))
            fcntl.ioctl(s, _SET_QUEUE, struct.pack("=16si20x", name, _QUEUED))
            fcntl.ioctl(s, _SET_FLAGS, struct.pack("=16sH22x", name, _UP | _NOARP))

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._fd

    def frames(self, most: int) -> Iterator[bytes]:
        """Yield up to `most` frames that the switch has sent, without waiting."""
        for _ in range(most):
            try:
                yield os.read(self._fd, _LARGEST)
            except OSError as exc:
                if exc.errno != errno.EAGAIN:
                    raise
                return

    def send(self, frame: bytes) -> None:
        """Inject a frame of at least SHORTEST bytes; it is lost if there is no room."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._fd, frame)

    def close(self) -> None:
        """Remove the device."""
        os.close(self._fd)
