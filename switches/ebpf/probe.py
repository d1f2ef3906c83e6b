"""Check whether this machine can run the target `ebpf`.

`python -m mrclab.switches.ebpf.probe` runs all checks in a temporary network namespace. If a needed feature
is missing, it prints one line to stderr and exits with 3.
"""

from __future__ import annotations

import ctypes
import os
import sys

from mrclab.linux import bpf
from mrclab.linux.bpf_types import NO_PREALLOC, MapSpec, MapType, leave
from mrclab.linux.errors import MachineError, MrclabError
from mrclab.linux.system import is_root
from mrclab.linux.traffic_control import TrafficControl

_RETURN_OK = leave(0)
_LOOPBACK = 1
_CLONE_NEWNET = 0x40000000


def check_machine() -> None:
    """Raise MachineError, with a remedy, if the kernel or the user's rights do not allow the target."""
    if not sys.platform.startswith("linux") or sys.byteorder != "little":
        raise MachineError("the ebpf target needs a little-endian Linux machine")
    if not is_root():
        raise MachineError("the ebpf target needs root: start it with sudo")
    os.close(bpf.create_map(MapSpec("probe", MapType.LPM_TRIE, 8, 8, 1, NO_PREALLOC)))
    os.close(bpf.load_program(_RETURN_OK, "probe"))


def check_attachment() -> None:
    """Raise MachineError if tc cannot run BPF programs. Test this on the loopback of a new namespace."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        raise MachineError(f"no network namespaces here: {os.strerror(ctypes.get_errno())}")
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


def main() -> int:
    """Check the machine. Return the exit code."""
    try:
        check_machine()
        check_attachment()
    except MrclabError as exc:
        print(exc, file=sys.stderr)
        return exc.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
