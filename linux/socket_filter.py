"""Filters of sockets in classic BPF: the kernel wakes no process for a frame that they drop.

Not compiled with what drives the core: compiled code lets go of a buffer after its last mention, before the
kernel has read it.
"""

from __future__ import annotations

import ctypes
import socket
import struct

SO_ATTACH_FILTER = 26


Instructions = tuple[tuple[int, int, int, int], ...]
"""A classic BPF program: code, jump if true, jump if false, constant."""


def udp_filter(port: int, size: int) -> Instructions:
    """Return a filter for the first `size` bytes of each IPv6 frame with UDP to this port."""
    return (
        (0x30, 0, 0, 20),
        (0x15, 0, 3, socket.IPPROTO_UDP),
        (0x28, 0, 0, 56),
        (0x15, 0, 1, port),
        (0x06, 0, 0, size),
        (0x06, 0, 0, 0),
    )


def attach_filter(to: socket.socket, program: Instructions) -> None:
    """Make a socket receive only the frames that a classic BPF program accepts."""
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("HL", len(program), ctypes.addressof(buffer))
    to.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, head)
