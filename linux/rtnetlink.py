"""Route netlink and ethtool by pyroute2: the requests a cable takes, offloads off, carrier looked at.

The socket is in the namespace one is in. Importing this imports pyroute2 and asyncio, which takes some 0.1 s:
import it where the work is done, so that commands that only look at a testbed stay quick.
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
_PER_BATCH = 64  # acknowledgements wait in the socket, which holds a few hundred

Request = dict[str, Any]  # an nlmsg of pyroute2's


def opened() -> IPRoute:
    """Return a socket in the calling thread's namespace; a context manager.

    Open and use it in a thread that ends soon (``namespaces.in_thread``). pyroute2 drives its socket with an
    event loop, and cannot where the thread runs one already, as a notebook's does; each thread that uses the
    socket gets one of its own, in the namespace that thread is in; and pyroute2's way into a namespace,
    ``IPRoute(netns=...)``, forks a process for each, which does not go with gRPC's threads.
    """
    return IPRoute(ext_ack=True)


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Raise the kernel's refusals in the ``with`` as OSError, with their subject."""
    try:
        yield
    except NetlinkError as error:
        raise OSError(error.code, f"{what}: {error.args[1]}") from None


def send(route: IPRoute, requests: Sequence[Request], what: str) -> None:
    """Send requests to the kernel in order, many at a time.

    Raise OSError for the first that it refused; those of the same batch that follow it are carried out.
    """
    with refusals(what):
        for start in range(0, len(requests), _PER_BATCH):
            route.nlm_request_batch(requests[start : start + _PER_BATCH])


def veth(near: Mapping[str, Any], far: Mapping[str, Any]) -> Request:
    """Return the request for a veth pair, both ends down. An end is made by ``interface``."""
    peer = ("IFLA_INFO_DATA", {"attrs": [("VETH_INFO_PEER", far)]})
    info = ("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", "veth"), peer]})
    return _request(ifinfmsg(), RTM_NEWLINK, _MAKE, index=near["index"], attrs=[*near["attrs"], info])


def interface(index: int, **attributes: object) -> dict[str, Any]:
    """Return an interface to make, of an index of our choosing; ``mtu=4500`` is IFLA_MTU, and so on."""
    return {
        "index": index,
        "attrs": [(f"IFLA_{name.upper()}", value) for name, value in attributes.items()],
    }


def up(index: int) -> Request:
    """Return the request that brings an interface up."""
    return _request(ifinfmsg(), RTM_NEWLINK, _DO, index=index, flags=IFF_UP, change=IFF_UP)


class _TbfMessage(nlmsg):  # type: ignore[misc]
    """A token bucket in the kernel's form: struct tc_tbf_qopt and later attributes.

    pyroute2's own lacks two attributes: its rates end at 34 Gbit/s (its issue 715), and it rounds bursts
    down to whole microseconds of the rate, a burst of two frames to less than two. Nor can a subclass add
    them: pyroute2 makes its tables once for a class and those below it, so an attribute is dropped, without
    a word, where the class above happened to be used first.
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
    """A class of HTB. pyroute2's own makes two rate tables, which the kernel does not need here, and
    which take longer than all else that is done for a link."""

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
        "rate___reserved": LINKLAYER_ETHERNET,  # where the link layer is; the kernel then needs no rate table
        "limit": limit_bytes,
    }
    options = [("TCA_TBF_PARMS", parameters), ("TCA_TBF_BURST", burst_bytes)]
    if rate > 0xFFFFFFFF:
        options.append(("TCA_TBF_RATE64", rate))
    return _qdisc(_TbfMessage(), index, "tbf", {"attrs": options}, handle=0x1_0000, parent=TC_H_ROOT)


def htb(index: int, *, default_class: int) -> Request:
    """Return the request for a hierarchy of token buckets as an interface's root qdisc (handle 1:).

    A frame goes to the leaf that its skb->priority names, else to 1:``default_class``.
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
    """Return the request for a class 1:``number`` of HTB, below 1:``parent`` or (0) below the qdisc.

    It always gets ``rate_bps``, and borrows up to ``ceil_bps`` from its parent, ahead of classes of a higher
    ``order``. At once go ``burst_bytes`` of its own rate and ``ceil_burst_bytes`` (by default as many) of
    what it borrows. Not by pyroute2's ``tc("add-class", "htb")``, which rounds bursts as it does with TBF.
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
    """Return the request for a queue in a leaf class: handle 10:, 11:, ... below 1:``parent``."""
    handles = {"handle": parent << 16, "parent": 1 << 16 | parent}
    return _qdisc(tcmsg(), index, "bfifo", struct.pack("=I", limit_bytes), **handles)


def netem(index: int, *, delay_ns: int, limit_packets: int, parent: int = 1) -> Request:
    """Return the request for a delay line in a leaf class: handle 10:, 11:, ... below 1:``parent``.

    Its delay is kept to the scheduler's tick of 64 ns.
    """
    options = {"delay": _ticks(delay_ns), "limit": limit_packets}
    handles = {"handle": max(parent, 0x10) << 16, "parent": 1 << 16 | parent}
    return _qdisc(tcmsg(), index, "netem", options, **handles)


def no_leaf(index: int, *, parent: int = 1) -> Request:
    """Return the request to remove the qdisc below 1:``parent``; the kernel's default queue takes over."""
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


# The ioctl half of pyroute2's Ethtool, which does features by ioctl anyway. The whole one reads every
# interface's features again before it changes them, which takes longer than making the interface.

ETHTOOL_GLINK = 0x0A

# Whatever lets the kernel hand on a frame that is not as it would be on the wire: larger than the MTU,
# without its checksum, or in pieces.
OFFLOADS = re.compile(
    r"^(tx-checksum-.*|rx-checksum|tx-scatter-gather.*|tx-.*segmentation|tx-gso-.*|rx-gro.*|rx-lro)$"
)


def opened_ethtool() -> AbstractContextManager[IoctlEthtool]:
    """Return ethtool's requests to the interfaces of the calling thread's namespace."""
    return closing(IoctlEthtool())


def switch_off(ethtool: IoctlEthtool, ifnames: Iterable[str]) -> None:
    """Switch off every offload that the interfaces can do without. They are of one kind: all have the
    features of the first."""
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
    """Make the kernel act on a change of carrier now instead of soon; return True if there is carrier.

    An interface that has just got its carrier drops frames until a kernel worker has switched
    its queue on. Asking for the link state does that worker's work at once.
    """
    ethtool.change_ifname(ifname)
    link = EthtoolValue(cmd=ETHTOOL_GLINK)
    ethtool.ifreq.value = ctypes.pointer(link)
    ethtool.ioctl()
    return bool(link.data)
