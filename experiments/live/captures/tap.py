"""Captures with eBPF: a program at the tc hooks of a NIC's interfaces records the frames.

For every IPv6 frame that leaves or enters an interface, the program writes a record of fixed size into a ring
buffer: the time and the first bytes of the frame. A thread copies the records to a file every 0.1 s. When the
capture ends, the records are written as a pcap file, like tcpdump's. A tap needs much less CPU time than
tcpdump, so a tap works at rates at which tcpdump would lose packets. The times are of CLOCK_MONOTONIC.

A tap does not depend on the endpoints. It records the frames between the kernel and the NIC.
"""

from __future__ import annotations

import os
import struct
import tempfile
import threading
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir

from mrclab.experiments.measure.pcap import LINKTYPE_LINUX_SLL2, SLL2_OUTGOING, file_header
from mrclab.experiments.measure.recording import CaptureCounts
from mrclab.linux import bpf, namespaces
from mrclab.linux.bpf import Map
from mrclab.linux.bpf_types import MMAPABLE, MapSpec, MapType
from mrclab.linux.ring_buffer import RECORD_HEADER, RingReader
from mrclab.linux.traffic_control import TrafficControl, ifindex_of
from mrclab.p4src.contract import INNER_IPV6_BYTES, TIMESTAMP_BYTES, TRIMMED_BYTES
from mrclab.switches.ebpf.codegen.backend.asm import I8, I32, I64, PTR, Asm, Helper, const
from mrclab.switches.ebpf.codegen.backend.worker import compile_ir, section

# The ring buffer has room for four seconds at 75,000 packets/s, in case a busy machine delays the reader.
RING_BYTES = 64 << 20
DRAIN_S = 0.1
ETHERNET = 14
# The numbers of bytes that the program may copy of a frame. eBPF can copy only a constant number of bytes. So
# the program copies the largest of these numbers that does not exceed the frame's length. The largest number
# is enough for a segment list of two SIDs and the headers up to RETH and immediate, or for a whole SACK. The
# last bytes of a frame show that a switch trimmed the frame. So the list has every length of a trimmed frame:
# with or without outer header, with or without timestamp.
_TRIMMED = tuple(
    TRIMMED_BYTES - outer + stamp for outer in (0, INNER_IPV6_BYTES) for stamp in (0, TIMESTAMP_BYTES)
)
KEPT = tuple(sorted((176, 160, 144, 128, 112, 96, 80, 64, *_TRIMMED), reverse=True))
SNAP_BYTES = KEPT[0]

_HEAD = np.dtype([("t_ns", "<u8"), ("ifindex", "<u4"), ("wire", "<u4"), ("kept", "<u4"), ("outgoing", "<u4")])
RECORD = np.dtype([("ring", f"V{RECORD_HEADER}"), ("head", _HEAD), ("frame", "u1", (KEPT[0],))])
_DATA_BYTES = _HEAD.itemsize + KEPT[0]
_LOST = struct.Struct("=Q")
_CHUNK = 1 << 16
_SECTION = "classifier"
_CONTINUE = -1  # TC_ACT_UNSPEC: the frame passes unchanged
_LEN, _PROTOCOL, _IFINDEX = 0, 16, 40  # offsets in struct __sk_buff
_IPV6 = 0xDD86  # ETH_P_IPV6 in network order
_NO_WAKEUP = 1
_RING, _LOST_MAP = range(2)
_ETH_P_IPV6, _ARPHRD_ETHER = 0x86DD, 1


@cache
def _program(outgoing: bool) -> bytes:
    """Compile the program of one direction, with placeholders for its maps. Raise CompilerError."""
    module = ir.Module(name="tap")
    module.triple = "bpfel"
    function = ir.Function(module, ir.FunctionType(I32, [PTR]), "tap")
    function.section = _SECTION
    asm = Asm(module, function)
    b, ctx = asm.b, function.args[0]
    memory = b.alloca(ir.ArrayType(I8, _DATA_BYTES))
    memory.align = 8
    record = b.inttoptr(b.ptrtoint(memory, I64), PTR)  # all addresses are untyped pointers
    length, protocol, ifindex = (asm.load(asm.at(ctx, at), 32, 4) for at in (_LEN, _PROTOCOL, _IFINDEX))
    ours, done, write, lost = (asm.block(name) for name in ("ours", "done", "write", "lost"))
    b.cbranch(b.icmp_unsigned("==", protocol, const(32, _IPV6)), ours, done)
    asm.enter(done)
    b.ret(const(32, _CONTINUE))
    asm.enter(ours)
    for at in range(0, _DATA_BYTES, 8):
        asm.store(const(64, 0), asm.at(record, at), 8)
    asm.store(asm.helper(Helper.KTIME_GET_NS), asm.at(record, 0), 8)
    for at, value in ((8, ifindex), (12, length), (20, const(32, int(outgoing)))):
        asm.store(value, asm.at(record, at), 4)
    for size in KEPT:
        long, short, read = (asm.block(f"{name}.{size}") for name in ("long", "short", "read"))
        b.cbranch(b.icmp_unsigned(">=", length, const(32, size)), long, short)
        asm.enter(long)
        frame = asm.at(record, _HEAD.itemsize)
        failed = asm.helper(Helper.SKB_LOAD_BYTES, ctx, const(64, 0), frame, const(64, size))
        b.cbranch(b.icmp_unsigned("==", failed, const(64, 0)), read, done)
        asm.enter(read)
        asm.store(const(32, size), asm.at(record, 16), 4)
        b.branch(write)
        asm.enter(short)
    b.branch(done)
    asm.enter(write)
    args = (asm.map_ptr(_RING), record, const(64, _DATA_BYTES), const(64, _NO_WAKEUP))
    full = asm.helper(Helper.RINGBUF_OUTPUT, *args)
    b.cbranch(b.icmp_unsigned("==", full, const(64, 0)), done, lost)
    asm.enter(lost)
    b.atomic_rmw("add", asm.map_value(_LOST_MAP), const(64, 1), "monotonic")
    b.branch(done)
    return section(compile_ir(str(module)), _SECTION)


@dataclass(frozen=True, slots=True)
class TapSource:
    """The place of a tap: the name of a network namespace, and the names of its interfaces.

    The tap reads CLOCK_MONOTONIC and adds ``offset_ns``, so that the file has times of CLOCK_REALTIME. All
    taps of a recording have the same offset.
    """

    namespace: str
    interfaces: tuple[str, ...]
    offset_ns: int

    def start(self, file: Path) -> Tap:
        """Begin to record. Raise MachineError or SwitchError if the kernel refuses the program."""
        return Tap(file, self.namespace, self.interfaces, self.offset_ns)


class Tap:
    """A running tap, made by `TapSource.start`. It records packets from its construction on."""

    def __init__(
        self,
        file: Path,
        namespace: str,
        interfaces: Sequence[str],
        offset_ns: int,
        ring_bytes: int | None = None,
    ) -> None:
        self.file = file
        ring_bytes = ring_bytes or RING_BYTES
        self._offset_ns = offset_ns
        self._namespace = namespace
        self._attached: list[int] = []
        self._taken = 0
        self._failed: OSError | None = None
        self._end = threading.Event()
        self._carrying = threading.Lock()
        with ExitStack() as stack:
            ring = Map(MapSpec("tap_ring", MapType.RINGBUF, 0, 0, ring_bytes))
            stack.callback(ring.close)
            self._lost = Map(MapSpec("tap_lost", MapType.ARRAY, 4, 8, 1, MMAPABLE))
            stack.callback(self._lost.close)
            self._ring = RingReader(ring.fd, ring_bytes)
            stack.callback(self._ring.close)
            self._raw = stack.enter_context(tempfile.TemporaryFile(dir=file.parent))
            fds = [
                bpf.load_program(bpf.relocate(_program(out), [ring.fd, self._lost.fd]), "tap")
                for out in (0, 1)
            ]
            for fd in fds:
                stack.callback(os.close, fd)
            stack.callback(self._detach)
            namespaces.in_thread(lambda: self._attach(interfaces, fds))
            self._closing = stack.pop_all()
        self._thread = threading.Thread(target=self._drain, name="tap", daemon=True)
        self._thread.start()

    @property
    def offset_ns(self) -> int | None:
        """The time in the file minus the time of CLOCK_MONOTONIC."""
        return self._offset_ns

    def _attach(self, interfaces: Sequence[str], fds: Sequence[int]) -> None:
        namespaces.enter(self._namespace)
        with TrafficControl() as tc:
            for name in interfaces:
                ifindex = ifindex_of(name)
                tc.add_clsact(ifindex)
                self._attached.append(ifindex)
                for egress, fd in enumerate(fds):
                    tc.add_filter(ifindex, fd, "tap", egress=bool(egress))

    def _detach(self) -> None:
        def work() -> None:
            namespaces.enter(self._namespace)
            with TrafficControl() as tc:
                while self._attached:
                    tc.remove_clsact(self._attached.pop())

        if self._attached:
            namespaces.in_thread(work)

    def _drain(self) -> None:
        while not self._end.wait(DRAIN_S):
            try:
                self.carry()
            except OSError as error:  # the disk is full; `stop` raises the error
                self._failed = error
                return

    def carry(self) -> None:
        """Copy the records of the ring buffer to the file."""
        with self._carrying:
            self._carry()

    def _carry(self) -> None:
        for piece in self._ring.pieces(RECORD.itemsize):
            self._raw.write(piece)
            self._taken += len(piece) // RECORD.itemsize

    def stop(self) -> CaptureCounts:
        """End the capture and write the file; return the counts. Raise OSError if writing fails."""
        self._detach()
        self._halt()
        try:
            if self._failed is not None:
                raise self._failed
            self.carry()
            (lost,) = _LOST.unpack_from(self._lost.memory())
            self._raw.seek(0)
            piece, crc32 = file_header(KEPT[0], LINKTYPE_LINUX_SLL2), 0
            with self.file.open("wb") as out:
                while piece:
                    out.write(piece)
                    crc32 = zlib.crc32(piece, crc32)
                    raw = self._raw.read(_CHUNK * RECORD.itemsize)
                    piece = pcap_records(np.frombuffer(raw, RECORD), self._offset_ns)
        finally:
            self._closing.close()
        return CaptureCounts(self._taken, self._taken + lost, lost, crc32)

    def kill(self) -> None:
        """End the capture without writing the file, for a run that has failed."""
        self._halt()
        self._closing.close()

    def _halt(self) -> None:
        self._end.set()
        self._thread.join()


def pcap_records(records: np.ndarray[Any, np.dtype[np.void]], offset_ns: int) -> bytes:
    """Return records of the ring buffer as records of a pcap file of link type LINUX_SLL2."""
    head, frame = records["head"], records["frame"]
    stamps = head["t_ns"].astype(np.int64) + offset_ns
    layout = np.dtype(
        [
            *((name, "<u4") for name in ("s", "ns", "kept", "wire")),
            ("protocol", ">u2"),
            ("reserved", ">u2"),
            ("ifindex", ">u4"),
            ("hardware", ">u2"),
            ("kind", "u1"),
            ("address_bytes", "u1"),
            ("address", "u1", (8,)),
            ("packet", "u1", (KEPT[0] - ETHERNET,)),
        ]
    )
    rows = np.zeros(len(records), layout)
    rows["s"], rows["ns"] = stamps // 10**9, stamps % 10**9
    link = 20 - ETHERNET  # bytes of the SLL2 header minus those of the Ethernet header
    rows["kept"], rows["wire"] = head["kept"] + link, head["wire"] + link
    rows["protocol"], rows["ifindex"], rows["hardware"] = _ETH_P_IPV6, head["ifindex"], _ARPHRD_ETHER
    rows["kind"] = np.where(head["outgoing"] != 0, SLL2_OUTGOING, 0)
    rows["address_bytes"], rows["address"][:, :6] = 6, frame[:, 6:12]
    rows["packet"] = frame[:, ETHERNET:]
    flat = rows.view(np.uint8).reshape(len(rows), layout.itemsize)
    used = np.arange(layout.itemsize) < (16 + rows["kept"])[:, None]
    return flat[used].tobytes()
