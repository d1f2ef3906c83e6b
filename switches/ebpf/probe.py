"""Whether this machine can run the target: tried out on a namespace's loopback, and taken back."""

from __future__ import annotations

import os
import struct
import sys

from switches.ebpf import bpf
from switches.ebpf.plan import NO_PREALLOC, MapSpec, MapType
from switches.ebpf.tc import TrafficControl
from switches.errors import MachineError

_RETURN_OK = struct.pack("<BBhi", 0xB7, 0, 0, 0) + struct.pack("<BBhi", 0x95, 0, 0, 0)
_LOOPBACK = 1


def check_machine() -> None:
    """Raise MachineError, naming the mend, when the kernel or the privileges do not allow the target."""
    if not sys.platform.startswith("linux") or sys.byteorder != "little":
        raise MachineError("the ebpf target needs a little-endian Linux machine")
    if os.geteuid() != 0:
        raise MachineError("the ebpf target needs root: start it with sudo")
    os.close(bpf.create_map(MapSpec("probe", MapType.LPM_TRIE, 8, 8, 1, NO_PREALLOC)))
    os.close(bpf.load_program(_RETURN_OK, "probe"))


def check_attachment() -> None:
    """Raise MachineError when tc cannot run BPF programs. Not where loopback is a port."""
    fd = bpf.load_program(_RETURN_OK, "probe")
    try:
        with TrafficControl() as tc:
            tc.add_clsact(_LOOPBACK)
            try:
                tc.add_filter(_LOOPBACK, fd, "probe")
            finally:
                tc.remove_clsact(_LOOPBACK)
    finally:
        os.close(fd)
