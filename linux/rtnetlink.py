"""Route netlink and ethtool by pyroute2: make links, turn off offloads, check the carrier.

A socket belongs to the namespace of the thread that opens it. Import this module inside the function
that uses it: the import of pyroute2 and asyncio takes about 0.1 s, and commands that only read a testbed must
be quick.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

from pyroute2 import IPRoute
from pyroute2.ethtool.ioctl import EthtoolValue, IoctlEthtool
from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, nla, nlmsg
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import RTM_DELQDISC, RTM_NEWLINK, RTM_NEWQDISC, RTM_NEWTCLASS, TC_H_ROOT
from pyroute2.netlink.rtnl.ifinfmsg import IFF_UP, ifinfmsg
from pyroute2.netlink.rtnl.tcmsg import sched_htb, sched_tbf, tcmsg
from pyroute2.netlink.rtnl.tcmsg.common import LINKLAYER_ETHERNET, tick_in_usec

_DO = NLM_F_REQUEST | NLM_F_ACK
_MAKE = _DO | NLM_F_CREATE | NLM_F_EXCL
_PER_BATCH = 64  # requests in a batch: the socket has room for a few hundred acknowledgements

Request = dict[str, Any]  # a netlink message of pyroute2 (nlmsg)


def opened() -> IPRoute:
    """Return a netlink socket in the calling thread's namespace, as a context manager.

    Open and use it in a short-lived thread (``namespaces.in_thread``). pyroute2 runs an event loop for its
    socket. This fails in a thread that already has an event loop, such as a notebook's. pyroute2 also opens
    one socket for each thread, in the thread's namespace. Do not use ``IPRoute(netns=...)``: it forks a
    process, which does not work with gRPC's threads.
    """
    return IPRoute(ext_ack=True)


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Raise an OSError that begins with ``what`` if the kernel refuses a request within the ``with``."""
    try:
        yield
    except NetlinkError as error:
        raise OSError(error.code, f"{what}: {error.args[1]}") from None


def send(route: IPRoute, requests: Sequence[Request], what: str) -> None:
    """Send requests to the kernel in order, many at a time.

    Raise OSError for the first refused request. Later requests of its batch are still carried out.
    """
    with refusals(what):
        for start in range(0, len(requests), _PER_BATCH):
            route.nlm_request_batch(requests[start : start + _PER_BATCH])


def veth(near: Mapping[str, Any], far: Mapping[str, Any]) -> Request:
    """Return the request for a veth pair, both ends down. Make each end with ``interface``."""
    peer = ("IFLA_INFO_DATA", {"attrs": [("VETH_INFO_PEER", far)]})
    info = ("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", "veth"), peer]})
    return _request(ifinfmsg(), RTM_NEWLINK, _MAKE, index=near["index"], attrs=[*near["attrs"], info])


def interface(index: int, **attributes: object) -> dict[str, Any]:
    """Return the description of an interface to make. ``mtu=4500`` sets IFLA_MTU, and so on."""
    return {
        "index": index,
        "attrs": [(f"IFLA_{name.upper()}", value) for name, value in attributes.items()],
    }


def up(index: int) -> Request:
    """Return the request that brings an interface up."""
    return _request(ifinfmsg(), RTM_NEWLINK, _DO, index=index, flags=IFF_UP, change=IFF_UP)


class _TbfMessage(nlmsg):  # type: ignore[misc]
    """A token bucket in the kernel's form: struct tc_tbf_qopt and later attributes.

    pyroute2's own message lacks two attributes. So its highest rate is 34 Gbit/s (pyroute2's issue 715), and
    it rounds a burst of two frames down to less than two. A subclass cannot add the attributes: pyroute2
    builds one table for a class and its subclasses, so new attributes may be dropped silently.
    """

    fields = tcmsg.fields
    nla_map = ((1, "TCA_KIND", "asciiz"), (2, "TCA_OPTIONS", "options"))

    class options(nla):  # type: ignore[misc]  # noqa: N801  (pyroute2's way to name an attribute's type)
        nla_map = (
            (1, "TCA_TBF_PARMS", "parms"),
            (4, "TCA_TBF_RATE64", "uint64"),
            (6, "TCA_TBF_BURST", "uint32"),
        )

        class parms(nla):  # type: ignore[misc]  # noqa: N801
            fields = sched_tbf.options.tbf_parms.fields


class _HtbClassMessage(nlmsg):  # type: ignore[misc]
    """A class of HTB without pyroute2's two rate tables. The kernel does not need these slow tables."""

    fields = tcmsg.fields
    nla_map = ((1, "TCA_KIND", "asciiz"), (2, "TCA_OPTIONS", "options"))

    class options(nla):  # type: ignore[misc]  # noqa: N801
        nla_map = (
            (1, "TCA_HTB_PARMS", "parms"),
            (6, "TCA_HTB_RATE64", "uint64"),
            (7, "TCA_HTB_CEIL64", "uint64"),
        )

        class parms(nla):  # type: ignore[misc]  # noqa: N801
            fields = sched_htb.options.htb_parms.fields


def tbf(index: int, *, rate_bps: int, burst_bytes: int, limit_bytes: int) -> Request:
    """Return the request for a token bucket as an interface's root qdisc (handle 1:)."""
    rate = rate_bps // 8
    parameters = {
        "rate": min(rate, 0xFFFFFFFF),
        "rate___reserved": LINKLAYER_ETHERNET,  # with a link layer, the kernel needs no rate table
        "limit": limit_bytes,
    }
    options = [("TCA_TBF_PARMS", parameters), ("TCA_TBF_BURST", burst_bytes)]
    if rate > 0xFFFFFFFF:
        options.append(("TCA_TBF_RATE64", rate))
    return _qdisc(_TbfMessage(), index, "tbf", {"attrs": options}, handle=0x1_0000, parent=TC_H_ROOT)


def htb(index: int, *, default_class: int) -> Request:
    """Return the request for a hierarchy of token buckets as an interface's root qdisc (handle 1:).

    A frame goes to the leaf that its skb->priority names, or else to 1:``default_class``.
    """
    options = sched_htb.get_parameters({"default": default_class})
    return _qdisc(tcmsg(), index, "htb", options, handle=0x1_0000, parent=TC_H_ROOT)


def htb_class(
    index: int,
    *,
    number: int,
    parent: int,
    rate_bps: int,
    ceil_bps: int,
    burst_bytes: int,
    ceil_burst_bytes: int | None = None,
    order: int = 0,
    quantum_bytes: int = 10_000,
) -> Request:
    """Return the request for the class 1:``number`` of HTB, below 1:``parent`` (0: below the qdisc).

    The class always gets ``rate_bps`` and can borrow up to ``ceil_bps`` from its parent, before classes of a
    higher ``order``. It may send a burst of ``burst_bytes`` at its own rate. At the borrowed rate, the burst
    is ``ceil_burst_bytes`` (by default ``burst_bytes``). pyroute2's ``tc("add-class", "htb")`` would round
    the bursts.
    """
    parameters: dict[str, int] = {"quantum": quantum_bytes, "prio": order}
    options: list[tuple[str, object]] = [("TCA_HTB_PARMS", parameters)]
    ceil_burst = burst_bytes if ceil_burst_bytes is None else ceil_burst_bytes
    for name, bps, buffer, burst in (
        ("rate", rate_bps, "buffer", burst_bytes),
        ("ceil", ceil_bps, "cbuffer", ceil_burst),
    ):
        parameters[name] = min(bps // 8, 0xFFFFFFFF)
        parameters[f"{name}___reserved"] = LINKLAYER_ETHERNET
        parameters[buffer] = _ticks(burst * 8 * 10**9 // bps)
        if bps // 8 > 0xFFFFFFFF:
            options.append((f"TCA_HTB_{name.upper()}64", bps // 8))
    handles = {"handle": 1 << 16 | number, "parent": 1 << 16 | parent}
    return _qdisc(_HtbClassMessage(), index, "htb", {"attrs": options}, kind=RTM_NEWTCLASS, **handles)


def bfifo(index: int, *, limit_bytes: int, parent: int) -> Request:
    """Return the request for a queue in the leaf class 1:``parent``. The queue's handle is ``parent``:."""
    handles = {"handle": parent << 16, "parent": 1 << 16 | parent}
    return _qdisc(tcmsg(), index, "bfifo", struct.pack("=I", limit_bytes), **handles)


def netem(index: int, *, delay_ns: int, limit_packets: int, parent: int = 1) -> Request:
    """Return the request for a delay line in the leaf class 1:``parent``.

    The delay line's handle is ``parent``:, but at least 10: (hexadecimal). The delay is rounded down to the
    scheduler's tick of 64 ns.
    """
    options = {"delay": _ticks(delay_ns), "limit": limit_packets}
    handles = {"handle": max(parent, 0x10) << 16, "parent": 1 << 16 | parent}
    return _qdisc(tcmsg(), index, "netem", options, **handles)


def no_leaf(index: int, *, parent: int = 1) -> Request:
    """Return the request to remove the qdisc below 1:``parent``. The kernel then uses its default queue."""
    handles = {"handle": max(parent, 0x10) << 16, "parent": 1 << 16 | parent}
    return _request(tcmsg(), RTM_DELQDISC, _DO, index=index, attrs=[], **handles)


def _ticks(time_ns: int) -> int:
    return min(int(time_ns * tick_in_usec / 1000), 0xFFFFFFFF)


def _qdisc(
    message: Request,
    index: int,
    name: str,
    options: object,
    *,
    handle: int,
    parent: int,
    kind: int = RTM_NEWQDISC,
) -> Request:
    attributes = [("TCA_KIND", name), ("TCA_OPTIONS", options)]
    return _request(message, kind, _MAKE, index=index, handle=handle, parent=parent, attrs=attributes)


def _request(message: Request, kind: int, mode: int, **content: object) -> Request:
    message.update(content, header={"type": kind, "flags": mode})
    return message


# pyroute2's class Ethtool sets features by ioctl, so its ioctl part is enough here. The whole class would
# read every interface's features before each change. That takes longer than making the interface.

ETHTOOL_GLINK = 0x0A

# With these offloads the kernel may pass on a frame that differs from the frame on the wire: larger than the
# MTU, without its checksum, or in pieces.
OFFLOADS = re.compile(
    r"^(tx-checksum-.*|rx-checksum|tx-scatter-gather.*|tx-.*segmentation|tx-gso-.*|rx-gro.*|rx-lro)$"
)


def opened_ethtool() -> AbstractContextManager[IoctlEthtool]:
    """Return an object for ethtool's requests to the interfaces of the calling thread's namespace."""
    return closing(IoctlEthtool())


def switch_off(ethtool: IoctlEthtool, ifnames: Iterable[str]) -> None:
    """Turn off all possible offloads.

    Only the first interface's features are read, so all interfaces must have the same features.
    """
    features = None
    for ifname in ifnames:
        ethtool.change_ifname(ifname)
        if features is None:
            features = ethtool.get_features()
            for name in features.keys():  # noqa: SIM118  (iterating over it gives more than the names)
                if OFFLOADS.match(name) and features.is_available(name):
                    features[name] = False
        ethtool.set_features(features)


def settle(ethtool: IoctlEthtool, ifname: str) -> bool:
    """Make the kernel handle a change of carrier now. Return True if there is carrier.

    An interface that has just got its carrier drops frames until a kernel worker has switched on the
    interface's queue. A request for the link state does the same work at once.
    """
    ethtool.change_ifname(ifname)
    link = EthtoolValue(cmd=ETHTOOL_GLINK)
    ethtool.ifreq.value = ctypes.pointer(link)
    ethtool.ioctl()
    return bool(link.data)
