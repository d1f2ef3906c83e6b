"""Just enough route netlink to lay a fabric's cables in bulk.

Messages go to the kernel dozens at a time and their acknowledgements are read together. ``wide`` needs some
2,700 messages; one at a time through pyroute2 they take ten times as long (1.08 ms a veth pair, 0.36 ms a
token bucket).
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

NLMSG_ERROR = 2
NLM_F_REQUEST, NLM_F_ACK, NLM_F_EXCL, NLM_F_CREATE = 0x1, 0x4, 0x200, 0x400
NLM_F_CAPPED, NLM_F_ACK_TLVS = 0x100, 0x200
NLA_F_NESTED = 0x8000
SOL_NETLINK, NETLINK_CAP_ACK, NETLINK_EXT_ACK = 270, 10, 11
NLMSGERR_ATTR_MSG = 1

RTM_NEWLINK, RTM_DELLINK, RTM_NEWQDISC, RTM_NEWTCLASS = 16, 17, 36, 40
IFF_UP = 1
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_TXQLEN = 1, 3, 4, 13
IFLA_LINKINFO, IFLA_GROUP, IFLA_NET_NS_FD = 18, 27, 28
IFLA_NUM_TX_QUEUES, IFLA_NUM_RX_QUEUES = 31, 32
IFLA_INFO_KIND, IFLA_INFO_DATA, VETH_INFO_PEER = 1, 2, 1

TC_H_ROOT = 0xFFFFFFFF
TCA_KIND, TCA_OPTIONS = 1, 2
TCA_TBF_PARMS, TCA_TBF_RATE64, TCA_TBF_BURST = 1, 4, 6
TCA_HTB_PARMS, TCA_HTB_INIT, TCA_HTB_RATE64, TCA_HTB_CEIL64 = 1, 2, 6, 7
HTB_VERSION = 3
TCA_NETEM_LATENCY64 = 10
TC_LINKLAYER_ETHERNET = 1

_HEADER = struct.Struct("=IHHII")
_IFINFO = struct.Struct("=BxHiII")
_TCMSG = struct.Struct("=BxxxiIII")
_RATESPEC = struct.Struct("=BBHhHI")
_PER_BATCH = 64
_NS_PER_TICK = 64  # the packet scheduler's tick, PSCHED_SHIFT 6


class NetlinkError(OSError):
    """The kernel refused a message: its errno, its own words where it gives any, and what was asked."""

    def __init__(self, errno: int, detail: str, what: str) -> None:
        text = f"{os.strerror(errno)} ({detail})" if detail else os.strerror(errno)
        super().__init__(errno, f"{what}: {text}")


@dataclass(frozen=True, slots=True)
class Message:
    """A request and, for errors, what it is about."""

    kind: int
    flags: int
    body: bytes
    what: str


def attribute(kind: int, data: bytes) -> bytes:
    """A netlink attribute, padded to four bytes."""
    return struct.pack("=HH", len(data) + 4, kind) + data + bytes(-len(data) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    """An attribute that holds others."""
    return attribute(kind | NLA_F_NESTED, b"".join(attributes))


def _u32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def _text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


@dataclass(frozen=True, slots=True)
class VethEnd:
    """One end of a veth pair. ``namespace_fd`` is an open descriptor, or None for the socket's own."""

    ifname: str
    index: int
    mac: bytes
    mtu_bytes: int
    txqueuelen: int
    group: int
    namespace_fd: int | None = None

    def pack(self) -> bytes:
        """The ifinfomsg and its attributes, as both ends of a pair are written."""
        parts = [
            _IFINFO.pack(0, 0, self.index, 0, 0),
            _text(IFLA_IFNAME, self.ifname),
            attribute(IFLA_ADDRESS, self.mac),
            _u32(IFLA_MTU, self.mtu_bytes),
            _u32(IFLA_TXQLEN, self.txqueuelen),
            _u32(IFLA_GROUP, self.group),
            _u32(IFLA_NUM_TX_QUEUES, 1),
            _u32(IFLA_NUM_RX_QUEUES, 1),
        ]
        if self.namespace_fd is not None:
            parts.append(_u32(IFLA_NET_NS_FD, self.namespace_fd))
        return b"".join(parts)


def new_veth(near: VethEnd, far: VethEnd) -> Message:
    """Makes a veth pair, both ends down."""
    peer = attribute(VETH_INFO_PEER, far.pack())
    info = nested(IFLA_LINKINFO, _text(IFLA_INFO_KIND, "veth"), nested(IFLA_INFO_DATA, peer))
    what = f"cannot make the link {near.ifname} - {far.ifname}"
    return Message(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, near.pack() + info, what)


def set_up(index: int, ifname: str, *, up: bool = True) -> Message:
    """Brings an interface up, or takes it down."""
    body = _IFINFO.pack(0, 0, index, IFF_UP if up else 0, IFF_UP)
    return Message(RTM_NEWLINK, 0, body, f"cannot {'bring up' if up else 'take down'} {ifname}")


def delete_group(group: int) -> Message:
    """Deletes every interface of a group at once, which costs the kernel one grace period for all of them."""
    body = _IFINFO.pack(0, 0, 0, 0, 0) + _u32(IFLA_GROUP, group)
    return Message(RTM_DELLINK, 0, body, f"cannot delete the interfaces of group {group}")


def tbf(index: int, ifname: str, *, rate_bps: int, burst_bytes: int, limit_bytes: int) -> Message:
    """A token bucket as an interface's root qdisc (handle 1:)."""
    rate = rate_bps // 8
    spec = _RATESPEC.pack(0, TC_LINKLAYER_ETHERNET, 0, 0, 0, min(rate, 0xFFFFFFFF))
    buffer_ticks = min(burst_bytes * 10**9 // rate // _NS_PER_TICK, 0xFFFFFFFF)
    parameters = spec + bytes(_RATESPEC.size) + struct.pack("=III", limit_bytes, buffer_ticks, 0)
    options = [attribute(TCA_TBF_PARMS, parameters), _u32(TCA_TBF_BURST, burst_bytes)]
    if rate > 0xFFFFFFFF:
        options.append(attribute(TCA_TBF_RATE64, struct.pack("=Q", rate)))
    body = _TCMSG.pack(0, index, 1 << 16, TC_H_ROOT, 0) + _text(TCA_KIND, "tbf")
    what = f"cannot set the rate of {ifname}"
    return Message(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, body + nested(TCA_OPTIONS, *options), what)


def htb(index: int, ifname: str, *, default_class: int) -> Message:
    """A hierarchy of token buckets as an interface's root qdisc (handle 1:).

    A frame goes to the leaf that its skb->priority names, else to 1:``default_class``.
    """
    init = struct.pack("=IIIII", HTB_VERSION, 10, default_class, 0, 0)
    body = _TCMSG.pack(0, index, 1 << 16, TC_H_ROOT, 0) + _text(TCA_KIND, "htb")
    body += nested(TCA_OPTIONS, attribute(TCA_HTB_INIT, init))
    return Message(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, body, f"cannot set the queues of {ifname}")


def htb_class(
    index: int,
    ifname: str,
    *,
    number: int,
    parent: int,
    rate_bps: int,
    ceil_bps: int,
    burst_bytes: int,
    order: int = 0,
    quantum_bytes: int = 10_000,
) -> Message:
    """A class 1:``number`` of an HTB qdisc, below 1:``parent`` or, with 0, directly below the qdisc.

    It always gets ``rate_bps``, and borrows up to ``ceil_bps`` from its parent, ahead of classes of a higher
    ``order``.
    """

    def spec(bps: int) -> bytes:
        return _RATESPEC.pack(0, TC_LINKLAYER_ETHERNET, 0, 0, 0, min(bps // 8, 0xFFFFFFFF))

    def ticks(bps: int) -> int:
        return min(burst_bytes * 8 * 10**9 // bps // _NS_PER_TICK, 0xFFFFFFFF)

    parameters = spec(rate_bps) + spec(ceil_bps)
    parameters += struct.pack("=IIIII", ticks(rate_bps), ticks(ceil_bps), quantum_bytes, 0, order)
    options = [attribute(TCA_HTB_PARMS, parameters)]
    for kind, bps in ((TCA_HTB_RATE64, rate_bps), (TCA_HTB_CEIL64, ceil_bps)):
        if bps // 8 > 0xFFFFFFFF:
            options.append(attribute(kind, struct.pack("=Q", bps // 8)))
    body = _TCMSG.pack(0, index, 1 << 16 | number, 1 << 16 | parent, 0) + _text(TCA_KIND, "htb")
    what = f"cannot set class 1:{number:x} of {ifname}"
    return Message(RTM_NEWTCLASS, NLM_F_CREATE | NLM_F_EXCL, body + nested(TCA_OPTIONS, *options), what)


def netem(index: int, ifname: str, *, delay_ns: int, limit_packets: int, parent: int = 1) -> Message:
    """A delay line inside a token bucket or a leaf class: handle 10:, 11:, ... below 1:``parent``."""
    ticks = min(delay_ns // _NS_PER_TICK, 0xFFFFFFFF)
    # struct tc_netem_qopt, then nested attributes without a header of their own
    options = struct.pack("=IIIIII", ticks, limit_packets, 0, 0, 0, 0)
    options += attribute(TCA_NETEM_LATENCY64, struct.pack("=q", delay_ns))
    handle = max(parent, 0x10) << 16
    body = _TCMSG.pack(0, index, handle, 1 << 16 | parent, 0)
    body += _text(TCA_KIND, "netem") + attribute(TCA_OPTIONS, options)
    return Message(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, body, f"cannot set the delay of {ifname}")


class Netlink:
    """A route netlink socket. It stays in the namespace that the calling thread is in when it is opened."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        for option in (NETLINK_CAP_ACK, NETLINK_EXT_ACK):
            self._socket.setsockopt(SOL_NETLINK, option, 1)
        self._socket.bind((0, 0))
        self._sequence = 0

    def __enter__(self) -> Netlink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()

    def send(self, *messages: Message) -> None:
        """Has the kernel carry out messages in order. Raises NetlinkError for the first that it refused.

        A refused message does not stop those of the same batch (64) that follow it.
        """
        for start in range(0, len(messages), _PER_BATCH):
            self._send_batch(messages[start : start + _PER_BATCH])

    def _send_batch(self, messages: Sequence[Message]) -> None:
        waiting: dict[int, Message] = {}
        request = bytearray()
        for message in messages:
            self._sequence += 1
            waiting[self._sequence] = message
            flags = message.flags | NLM_F_REQUEST | NLM_F_ACK
            length = _HEADER.size + len(message.body)
            request += _HEADER.pack(length, message.kind, flags, self._sequence, 0) + message.body
        self._socket.send(request)
        first: NetlinkError | None = None
        while waiting:
            for sequence, errno, detail in _acknowledgements(self._socket.recv(1 << 16)):
                message = waiting.pop(sequence)
                if errno and first is None:
                    first = NetlinkError(errno, detail, message.what)
        if first is not None:
            raise first


def _acknowledgements(data: bytes) -> list[tuple[int, int, str]]:
    """The sequence number, errno and words of every acknowledgement in a datagram."""
    found = []
    while len(data) >= _HEADER.size:
        length, kind, flags, sequence, _ = _HEADER.unpack_from(data)
        if kind == NLMSG_ERROR:
            (error,) = struct.unpack_from("=i", data, _HEADER.size)
            detail = _words(data[:length]) if flags & NLM_F_ACK_TLVS and flags & NLM_F_CAPPED else ""
            found.append((sequence, -error, detail))
        data = data[(length + 3) & ~3 :]
    return found


def _words(message: bytes) -> str:
    data = message[_HEADER.size + 4 + _HEADER.size :]
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            break
        if kind & 0x3FFF == NLMSGERR_ATTR_MSG:
            return data[4:length].rstrip(b"\0").decode(errors="replace")
        data = data[(length + 3) & ~3 :]
    return ""
