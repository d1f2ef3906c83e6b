"""The bpf(2) system call by ctypes (maps, program loading, test runs), and classic BPF for sockets.

Struct layouts are those of `union bpf_attr` in linux/bpf.h. All functions raise OSError with the errno of the
call, or MachineError if the errno means that the machine lacks something.

This module must not be compiled with mypyc: compiled code frees a buffer after its last use in Python, before
the kernel has read it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import re
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from mrclab.linux.bpf_types import MAP_MARK, PSEUDO_MAP_FD, PSEUDO_MAP_VALUE, MapSpec, MapType
from mrclab.linux.errors import MachineError, SwitchError
from mrclab.linux.system import libc

_SYSCALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "loongarch64": 280}
_MAP_CREATE, _LOOKUP, _UPDATE, _DELETE, _NEXT_KEY, _PROG_LOAD = range(6)
_TEST_RUN, _BTF_LOAD, _LINK_CREATE = 10, 18, 28
_TCX_INGRESS, _TCX_EGRESS = 46, 47
_SCHED_CLS = 3
_LOG_SIZE = 16 << 20
_LOAD_ATTEMPTS = 5
"""The number of attempts to load a program, as in libbpf. A signal makes the verifier fail with EAGAIN."""
_LD_IMM64 = 0x18
_MEND = "run as root (CAP_BPF and CAP_NET_ADMIN; a container needs --privileged)"
ANY, NOEXIST, EXIST, LOCK = 0, 1, 2, 4


_NUMBER = _SYSCALL.get(platform.machine(), -1)


def _bpf(command: int, attr: ctypes.Array[ctypes.c_char]) -> int:
    if _NUMBER < 0:
        raise MachineError(
            f"no bpf(2) on {platform.machine()}: the ebpf target runs on {', '.join(_SYSCALL)}"
        )
    result: int = libc().syscall(_NUMBER, command, attr, len(attr))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


class Prepared:
    """A prepared update of a map. The update runs no Python code."""

    __slots__ = ("_kept", "make")

    def __init__(self, command: int, attr: ctypes.Array[ctypes.c_char], *kept: object) -> None:
        self.make: Callable[[], int] = partial(libc().syscall, _NUMBER, command, attr, len(attr))
        """Make the update. Return 0, or -1 if the kernel refuses it."""
        self._kept = kept
        """The memory to which the attribute points. It must live as long as this object."""


def _attr(fmt: str, *values: int | bytes) -> ctypes.Array[ctypes.c_char]:
    packed = struct.pack("=" + fmt, *values)
    return ctypes.create_string_buffer(packed, max(len(packed), 128))


def _lock_btf(size: int) -> bytes:
    """Return BTF for a struct of `size` bytes that begins with a bpf_spin_lock, which holds an int."""
    names = b"\0int\0bpf_spin_lock\0val\0value\0lock\0"
    at = {
        n: names.index(b"\0" + n + b"\0") + 1 for n in (b"int", b"bpf_spin_lock", b"val", b"value", b"lock")
    }
    kind_int, kind_struct = 1 << 24, 4 << 24
    types = struct.pack("=IIII", at[b"int"], kind_int, 4, 32)
    types += struct.pack("=III", at[b"bpf_spin_lock"], kind_struct | 1, 4)
    types += struct.pack("=III", at[b"val"], 1, 0)
    types += struct.pack("=III", at[b"value"], kind_struct | 1, size)
    types += struct.pack("=III", at[b"lock"], 2, 0)
    return struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(names)) + types + names


def _load_btf(data: bytes) -> int:
    blob = ctypes.create_string_buffer(data, len(data))
    return _bpf(_BTF_LOAD, _attr("QQIII", ctypes.addressof(blob), 0, len(data), 0, 0))


def create_map(spec: MapSpec) -> int:
    """Create a map and return its descriptor. Raise OSError if the kernel does not accept its size."""
    # The kernel keeps 15 characters of a name, and accepts only letters, digits, '_' and '.'.
    name = "".join(c if c.isalnum() else "_" for c in spec.name.split(".", 1)[-1])[:15].encode()
    numbers = (spec.type, spec.key_size, spec.value_size, spec.max_entries, spec.flags, 0, 0)
    if max(numbers) >= 1 << 32:  # too large for the field: fail as the kernel does for large sizes
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
    btf = -1
    try:
        if not spec.lock:
            return _bpf(_MAP_CREATE, _attr("7I16s", *numbers, name))
        btf = _load_btf(_lock_btf(spec.value_size))
        return _bpf(_MAP_CREATE, _attr("7I16s5I", *numbers, name, 0, btf, 1, 3, 0))
    except OSError as exc:
        if exc.errno in (errno.EPERM, errno.EACCES):
            raise MachineError(f"bpf(2) is not permitted: {_MEND}") from exc
        if exc.errno == errno.ENOSYS:
            raise MachineError(
                "this kernel has no bpf(2): it needs CONFIG_BPF_SYSCALL, from 5.15 on"
            ) from exc
        raise
    finally:
        if btf >= 0:  # the map keeps its own reference to the BTF
            os.close(btf)


def possible_cpus() -> int:
    """Return for how many CPUs the kernel stores per-CPU values (/sys/devices/system/cpu/possible)."""
    with open("/sys/devices/system/cpu/possible") as f:
        return sum(
            int(last or first) - int(first) + 1
            for first, _, last in (part.partition("-") for part in f.read().strip().split(","))
        )


class RefusedError(SwitchError):
    """The verifier refused a program.

    The error has the verifier's message and the number of the refused instruction.
    """

    def __init__(self, error: str, said: str, instruction: int | None, place: str | None = None) -> None:
        where = "" if place is None else f" in {place}"
        super().__init__(f"the kernel refused the program{where}: {error}: {said}")
        self.error, self.said, self.instruction = error, said, instruction

    def at(self, place: str | None) -> RefusedError:
        """Return this error with the place in the P4 program from which the instruction was compiled."""
        return RefusedError(self.error, self.said, self.instruction, place)


class Map:
    """An open map of this process. It is not for concurrent use: each call reuses the same buffers."""

    def __init__(self, spec: MapSpec, fd: int | None = None) -> None:
        self.spec = spec
        self.fd = create_map(spec) if fd is None else fd
        self._memory: mmap.mmap | None = None
        if spec.type == MapType.RINGBUF:  # a ring buffer has neither keys nor values
            return
        self._key = ctypes.create_string_buffer(spec.key_size)
        self._next = ctypes.create_string_buffer(spec.key_size)
        per_cpu = spec.type in (5, 6)
        self._value_size = spec.value_size if not per_cpu else (spec.value_size + 7 & ~7) * possible_cpus()
        self._value = ctypes.create_string_buffer(self._value_size)
        key, value = ctypes.addressof(self._key), ctypes.addressof(self._value)
        self._attr = {
            flag: _attr("I4xQQQ", self.fd, key, value, flag) for flag in (ANY, NOEXIST, EXIST, LOCK)
        }
        self._delete_attr = _attr("I4xQQQ", self.fd, key, 0, 0)  # the kernel requires 0 in these fields
        self._next_attr = _attr("I4xQQQ", self.fd, key, ctypes.addressof(self._next), 0)
        self._start_attr = _attr("I4xQQQ", self.fd, 0, ctypes.addressof(self._next), 0)

    def update(self, key: bytes, value: bytes, flag: int = ANY) -> None:
        """Set an entry."""
        self._key.raw, self._value.raw = key, value
        _bpf(_UPDATE, self._attr[flag])

    def prepared(self, key: bytes, value: bytes | None, flag: int = ANY) -> Prepared:
        """Return a prepared update that sets an entry, or removes it if ``value`` is None."""
        key_memory = ctypes.create_string_buffer(key, len(key))
        at = ctypes.addressof(key_memory)
        if value is None:
            return Prepared(_DELETE, _attr("I4xQQQ", self.fd, at, 0, 0), key_memory)
        memory = ctypes.create_string_buffer(value, self._value_size)
        attr = _attr("I4xQQQ", self.fd, at, ctypes.addressof(memory), flag)
        return Prepared(_UPDATE, attr, key_memory, memory)

    def delete(self, key: bytes) -> None:
        """Remove an entry."""
        self._key.raw = key
        _bpf(_DELETE, self._delete_attr)

    def lookup(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None if it is missing. A per-CPU map has a value for each CPU."""
        self._key.raw = key
        try:
            _bpf(_LOOKUP, self._attr[ANY])
        except OSError as exc:
            if exc.errno == errno.ENOENT:
                return None
            raise
        return self._value.raw

    def keys(self) -> Iterator[bytes]:
        """Return all keys."""
        attr = self._start_attr
        while True:
            try:
                _bpf(_NEXT_KEY, attr)
            except OSError as exc:
                if exc.errno == errno.ENOENT:
                    return
                raise
            key = self._next.raw
            yield key
            self._key.raw = key
            attr = self._next_attr

    def memory(self) -> mmap.mmap:
        """Map the values of a mappable array into memory. The program sees each change at once."""
        if self._memory is None:
            size = (self.spec.value_size * self.spec.max_entries + mmap.PAGESIZE - 1) & -mmap.PAGESIZE
            self._memory = mmap.mmap(self.fd, size)
        return self._memory

    def close(self) -> None:
        """Close the map in this process. The kernel keeps it while other processes or BPF programs use it."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def map_marks(code: bytes) -> list[tuple[int, int]]:
    """Return the placeholders for maps in 64-bit loads, as (offset in bytes, number of the map)."""
    found = []
    for at in range(0, len(code), 8):
        if code[at] != _LD_IMM64:
            continue
        source = code[at + 1] >> 4
        (value,) = struct.unpack_from("<I", code, at + 4)
        if source in (PSEUDO_MAP_FD, PSEUDO_MAP_VALUE) and value & 0xFFFF0000 == MAP_MARK:
            found.append((at + 4, value & 0xFFFF))
    return found


def relocate(code: bytes, fds: list[int]) -> bytes:
    """Replace the compiler's placeholders for maps by the descriptors of the maps."""
    out = bytearray(code)
    for at, number in map_marks(code):
        struct.pack_into("<I", out, at, fds[number])
    return bytes(out)


def load_program(code: bytes, name: str) -> int:
    """Load a tc program and return its descriptor. Raise RefusedError if the verifier refuses the program."""
    try:
        return _load(code, name, None)
    except OSError as exc:
        if exc.errno == errno.EPERM:
            raise MachineError(f"loading BPF is not permitted: {_MEND}") from exc
    log = ctypes.create_string_buffer(_LOG_SIZE)
    try:
        return _load(code, name, log)
    except OSError as exc:
        lines = [line for line in log.value.decode(errors="replace").splitlines() if line]
        said = lines[-2] if len(lines) > 1 and lines[-1].startswith("processed") else "".join(lines[-1:])
        raise RefusedError(exc.strerror or str(exc), said, _last_instruction(lines)) from exc


def _last_instruction(lines: Sequence[str]) -> int | None:
    """Return the number of the last instruction in the verifier's log (`12: (85) call ...`)."""
    seen = (re.match(r"(\d+): \([0-9a-f]{2}\)", line) for line in reversed(lines))
    return next((int(found[1]) for found in seen if found), None)


def _load(code: bytes, name: str, log: ctypes.Array[ctypes.c_char] | None) -> int:
    text = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    label = "".join(c if c.isalnum() else "_" for c in name)[:15].encode()
    attr = _attr(
        "IIQQIIQII16s",
        _SCHED_CLS,
        len(code) // 8,
        ctypes.addressof(text),
        ctypes.addressof(licence),
        0 if log is None else 1,
        0 if log is None else len(log),
        0 if log is None else ctypes.addressof(log),
        0,
        0,
        label,
    )
    for _ in range(_LOAD_ATTEMPTS - 1):
        try:
            return _bpf(_PROG_LOAD, attr)
        except OSError as exc:
            if exc.errno != errno.EAGAIN:
                raise
    return _bpf(_PROG_LOAD, attr)


def attach_first(program_fd: int, ifindex: int, *, egress: bool = False) -> int:
    """Run a tc program for every frame that an interface receives, before all of its tc filters (tcx).

    With ``egress``, run it for every frame that the interface sends, before the interface's queue.

    Return the descriptor of the attachment, which lasts until the descriptor is closed. Raise OSError with
    EINVAL if the kernel is older than 6.6.
    """
    where = _TCX_EGRESS if egress else _TCX_INGRESS
    return _bpf(_LINK_CREATE, _attr("IIII", program_fd, ifindex, where, 0))


def run_once(fd: int, frame: bytes, ifindex: int = 0, repeat: int = 1) -> tuple[int, bytes, int]:
    """Run a program on a frame (BPF_PROG_TEST_RUN). Return (return code, changed frame, ns per run).

    The kernel accepts frames of 15 to about 3,500 bytes, and gives the program a linear buffer. `ifindex`
    must be an interface of this network namespace, or 0 for the namespace's loopback.
    """
    source = ctypes.create_string_buffer(frame, len(frame))
    out = ctypes.create_string_buffer(16384)
    context = ctypes.create_string_buffer(192)  # the size of struct __sk_buff
    struct.pack_into("=I", context, 40, ifindex)
    attr = ctypes.create_string_buffer(
        struct.pack(
            "=IIIIQQIIIIQQ",
            fd,
            0,
            len(frame),
            len(out),
            ctypes.addressof(source),
            ctypes.addressof(out),
            repeat,
            0,
            len(context) if ifindex else 0,
            0,
            ctypes.addressof(context) if ifindex else 0,
            0,
        ),
        128,
    )
    _bpf(_TEST_RUN, attr)
    code, _, size = struct.unpack_from("=III", attr, 4)
    (duration,) = struct.unpack_from("=I", attr, 36)
    return code, out.raw[:size], duration


SO_ATTACH_FILTER = 26


Instructions = tuple[tuple[int, int, int, int], ...]
"""A classic BPF program. Each instruction is (code, jump if true, jump if false, constant)."""


def udp_filter(port: int, size: int) -> Instructions:
    """Return a filter that passes IPv6 frames with UDP to this port, cut to their first `size` bytes."""
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
