"""Read the kernel's own reports: warnings in its log, its taint flags, and the loaded BPF programs."""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from mrclab.linux.bpf import _attr, _bpf

_GET_FD_BY_ID, _GET_INFO, _NEXT_ID = 13, 15, 11
_NAME_AT = 64  # the offset in struct bpf_prog_info
_ALARM = re.compile(
    r"WARNING:|BUG:|Oops|general protection|Call Trace|refcount_t|soft lockup|hung task|KASAN|UBSAN|"
    r"possible recursive locking|suspicious RCU|unregister_netdevice: waiting"
)


def taint() -> int | None:
    """Return the kernel's taint flags, or None if they cannot be read."""
    try:
        return int(Path("/proc/sys/kernel/tainted").read_text())
    except (OSError, ValueError):
        return None


class KernelLog:
    """A reader of new lines of the kernel's log. If the log cannot be opened, `readable` is false."""

    def __init__(self) -> None:
        try:
            self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._fd, 0, os.SEEK_END)
            self.readable = True
        except OSError:
            self._fd, self.readable = -1, False

    def alarms(self) -> list[str]:
        """Return the lines since the last call that warn of an error in the kernel."""
        out = []
        while self.readable:
            try:
                line = os.read(self._fd, 8192).decode(errors="replace")
            except BlockingIOError:
                break
            except BrokenPipeError:  # some lines were overwritten
                continue
            if _ALARM.search(line):
                out.append(line.partition(";")[2].strip())
        return out

    def close(self) -> None:
        """Close the log."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def programs(name: str) -> list[int]:
    """Return the ids of the loaded BPF programs with that name, of any process."""
    return [number for number, other in _programs() if other == name]


def bpf_programs() -> list[int]:
    """Return the ids of all loaded BPF programs, of any process."""
    return [number for number, _ in _programs()]


def _programs() -> Iterator[tuple[int, str]]:
    number = 0
    while True:
        attr = _attr("III", number, 0, 0)
        try:
            _bpf(_NEXT_ID, attr)
        except FileNotFoundError:
            return
        (number,) = struct.unpack_from("=I", attr, 4)
        with contextlib.suppress(FileNotFoundError):  # a program may be unloaded at the same time
            yield number, _name(number)


def _name(number: int) -> str:
    import ctypes

    fd = _bpf(_GET_FD_BY_ID, _attr("III", number, 0, 0))
    try:
        info = ctypes.create_string_buffer(256)
        _bpf(_GET_INFO, _attr("IIQ", fd, len(info), ctypes.addressof(info)))
        return info.raw[_NAME_AT : _NAME_AT + 16].split(b"\0")[0].decode()
    finally:
        os.close(fd)


def locked_memory(pid: int) -> int:
    """Return the bytes that the kernel holds for the BPF maps and programs that a process has open."""
    total = 0
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(OSError):
            found = re.search(r"^memlock:\s*(\d+)", path.read_text(), re.MULTILINE)
            total += int(found[1]) if found else 0
    return total
