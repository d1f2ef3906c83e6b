"""The interfaces of ports: claims on them, and the rates of their queues.

A claim prevents two switch servers from programming the same interface. A claim is an abstract Unix socket
with the interface's number in its name. The kernel removes the socket when the process ends, even after a
crash.

The rate of a port's queue is read from the kernel over rtnetlink(7). This works only if the interface's root
qdisc is a `tbf`, or an `htb` whose top class sets the rate. `tc`, Mininet's TCLink and `testbed/links.py`
make such queues.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from mrclab.linux.errors import BadInputError
from mrclab.linux.traffic_control import TrafficControl, attribute, attributes, ifindex_of
from mrclab.switches.ebpf.plan import Shape


class Claims:
    """Claims on interfaces of this network namespace. The end of a `with` block releases the claims."""

    def __init__(self, interfaces: Iterable[str]) -> None:
        """Claim all interfaces. Raise BadInputError if an interface is missing or claimed already."""
        self._held = ExitStack()
        try:
            for interface in interfaces:
                self._claim(interface)
        except BaseException:
            self._held.close()
            raise

    def _claim(self, interface: str) -> None:
        claim = self._held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        try:
            claim.bind(f"\0mrclab-switch-port-{ifindex_of(interface)}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise BadInputError(
                f"interface {interface} is a port of another simple_switch_ebpf: end that one first"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()


_NEWQDISC, _DELQDISC, _GETQDISC, _NEWCLASS, _DELCLASS, _GETCLASS = 36, 37, 38, 40, 41, 42
_CREATE, _EXCL = 0x400, 0x200
_ROOT = 0xFFFFFFFF
_GROUP_TC = 1 << 3
_KIND, _OPTIONS = 1, 2
_TBF_PARMS, _TBF_RATE64, _TBF_BURST = 1, 4, 6
_HTB_PARMS, _HTB_INIT, _HTB_RATE64 = 1, 2, 6
_TICK_NS = 64
_ETHERNET = 1
_OURS = 0x6D720000  # handle of the qdiscs that this module creates
_FRAME = 10_000  # the kernel limits bytes, not frames: so every frame counts as 10,000 bytes
_LEAF_FRAMES = 1000  # default depth of an htb class in frames: the usual txqueuelen of an interface
MOST_FRAMES_PER_SECOND = 10**8


@dataclass(frozen=True)
class _Qdisc:
    """A qdisc or a class: the fields of its `struct tcmsg` and its attributes."""

    ifindex: int
    handle: int
    parent: int
    kind: str
    options: bytes


def shapes_of(tc: TrafficControl, ifindexes: Collection[int]) -> dict[int, Shape]:
    """Return the parameters of each interface's tbf or htb queue, by ifindex."""
    found: dict[int, list[_Qdisc]] = {}
    for q in _parsed(tc.dump(_GETQDISC, struct.pack("=BxxxiIII", 0, 0, 0, 0, 0))):
        if q.ifindex in ifindexes:
            found.setdefault(q.ifindex, []).append(q)
    out = {}
    for ifindex, qdiscs in found.items():
        root = next((q for q in qdiscs if q.parent == _ROOT), None)
        if root is None:
            continue
        if root.kind == "tbf":
            shape = _tbf(root, qdiscs)
        elif root.kind == "htb":
            body = struct.pack("=BxxxiIII", 0, ifindex, 0, 0, 0)
            shape = _htb(root, list(_parsed(tc.dump(_GETCLASS, body))), qdiscs)
        else:
            shape = None
        if shape is not None:
            out[ifindex] = shape
    return out


def set_queue(tc: TrafficControl, ifindex: int, frames_per_second: int, depth: int) -> None:
    """Limit an interface's frames per second, and its number of waiting frames. BMv2's queues do the same.

    The length of a frame does not matter. Raise BadInputError if the interface has a qdisc of another owner.
    """
    drop_queue(tc, ifindex)
    rate = frames_per_second * _FRAME
    spec = struct.pack("=BBHhHI", 0, _ETHERNET, 0, 0, _FRAME, min(rate, 0xFFFFFFFF))
    parms = spec + bytes(12) + struct.pack("=III", 0xFFFFFFFF, 0, 0)
    options = attribute(_TBF_PARMS, parms) + attribute(_TBF_BURST, struct.pack("=I", _FRAME))
    if rate > 0xFFFFFFFF:
        options += attribute(_TBF_RATE64, struct.pack("=Q", rate))
    try:
        _add(tc, ifindex, _OURS, _ROOT, "tbf", options)
    except OSError as exc:
        if exc.errno == errno.EEXIST:
            raise BadInputError(
                f"interface {socket.if_indextoname(ifindex)} has a qdisc: remove it "
                "(tc qdisc del dev ... root), or leave --queue-rate away and let its rate be taken"
            ) from exc
        if exc.errno == errno.ENOENT:
            raise BadInputError("--queue-rate: the kernel has no tbf: it needs CONFIG_NET_SCH_TBF") from exc
        raise
    _add(tc, ifindex, 0, _OURS | 1, "pfifo", struct.pack("=I", depth))


def drop_queue(tc: TrafficControl, ifindex: int) -> None:
    """Remove the qdisc that `set_queue` has made, if it exists."""
    try:
        tc.request(_DELQDISC, 0, struct.pack("=BxxxiIII", 0, ifindex, _OURS, _ROOT, 0))
    except OSError as exc:
        if exc.errno not in (errno.ENOENT, errno.EINVAL, errno.ENODEV):
            raise


def _add(tc: TrafficControl, ifindex: int, handle: int, parent: int, kind: str, options: bytes) -> None:
    body = struct.pack("=BxxxiIII", 0, ifindex, handle, parent, 0)
    body += attribute(_KIND, kind.encode() + b"\0") + attribute(_OPTIONS, options)
    tc.request(_NEWQDISC, _CREATE | _EXCL, body)


def _parsed(messages: Iterator[bytes]) -> Iterator[_Qdisc]:
    for body in messages:
        ifindex, handle, parent = struct.unpack_from("=iII", body, 4)
        found = attributes(body[20:])
        kind = found.get(_KIND, b"").rstrip(b"\0").decode(errors="replace")
        yield _Qdisc(ifindex, handle, parent, kind, found.get(_OPTIONS, b""))


def _rate(spec: bytes, found: Mapping[int, bytes], wide: int) -> tuple[int, int, int]:
    """Return rate (bytes per second), overhead and minimum size (bytes) of a `struct tc_ratespec`."""
    _, _, overhead, _, least, rate = struct.unpack_from("=BBHhHI", spec)
    if wide in found:
        (rate,) = struct.unpack("=Q", found[wide])
    return rate, overhead, least


def _tbf(root: _Qdisc, qdiscs: list[_Qdisc]) -> Shape | None:
    found = attributes(root.options)
    parms = found.get(_TBF_PARMS, b"")
    if len(parms) < 36:
        return None
    rate, overhead, least = _rate(parms, found, _TBF_RATE64)
    limit, ticks = struct.unpack_from("=II", parms, 24)
    leaf = next((q for q in qdiscs if q.parent >> 16 == root.handle >> 16 and q is not root), None)
    frames, room = _room(leaf, rate) if leaf is not None else (None, limit * 10**9 // max(rate, 1))
    return _shape(rate, ticks, True, frames, room, overhead, least)


def _htb(root: _Qdisc, classes: list[_Qdisc], qdiscs: list[_Qdisc]) -> Shape | None:
    found = attributes(root.options)
    (default,) = struct.unpack_from("=I", found.get(_HTB_INIT, bytes(12)), 8)
    tops = [c for c in classes if c.kind == "htb" and c.parent in (_ROOT, root.handle)]
    top = next((c for c in tops if c.handle & 0xFFFF == default), tops[0] if len(tops) == 1 else None)
    if top is None:
        return None
    found = attributes(top.options)
    parms = found.get(_HTB_PARMS, b"")
    if len(parms) < 32:
        return None
    rate, overhead, least = _rate(parms, found, _HTB_RATE64)
    # A top class cannot borrow, so each frame needs tokens of both buckets, rate and ceil. The smaller burst
    # is the limit.
    ticks = min(struct.unpack_from("=II", parms, 24))
    leaf = next((q for q in qdiscs if q.parent in (top.handle, root.handle | default)), None)
    frames, room = _room(leaf, rate) if leaf is not None else (_LEAF_FRAMES, None)
    return _shape(rate, ticks, False, frames, room, overhead, least)


def _room(leaf: _Qdisc, rate: int) -> tuple[int | None, int | None]:
    """Return a queue's limits: in frames, and in ns of sending time. None means that there is no limit."""
    if leaf.kind == "pfifo" and len(leaf.options) >= 4:
        return int(struct.unpack_from("=I", leaf.options)[0]), None
    if leaf.kind == "bfifo" and len(leaf.options) >= 4:
        return None, int(struct.unpack_from("=I", leaf.options)[0]) * 10**9 // max(rate, 1)
    return None, None


def _shape(
    rate: int, ticks: int, whole: bool, frames: int | None, room: int | None, overhead: int, least: int
) -> Shape:
    draft = Shape(rate, ticks * _TICK_NS, whole, overhead=overhead, least=least)
    return Shape(
        rate,
        draft.burst_ns,
        whole,
        draft.limit if frames is None else frames,
        draft.room_ns if room is None else room,
        overhead,
        least,
    )


class QdiscMonitor:
    """A socket that becomes readable when a qdisc or class of any interface changes."""

    def __init__(self) -> None:
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
        )
        self._socket.bind((0, _GROUP_TC))

    def fileno(self) -> int:
        """Return the file descriptor, which an event loop can wait for."""
        return self._socket.fileno()

    def changes(self) -> set[int] | None:
        """Return the interfaces with changes since the last call. None: any interface may have changed."""
        out: set[int] = set()
        while True:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                return out
            except OSError as exc:
                if exc.errno != errno.ENOBUFS:
                    raise
                return None
            at = 0
            while at + 36 <= len(data):
                size, kind = struct.unpack_from("=IH", data, at)
                if kind in (_NEWQDISC, _DELQDISC, _NEWCLASS, _DELCLASS):
                    out.add(struct.unpack_from("=i", data, at + 20)[0])
                if size < 16:
                    break
                at += size + 3 & ~3

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
