"""Opening a transport's channels in a host's namespace, from its kind and options.

To add a transport, add a line to ``CONTEXTS`` (a transport with verbs) or ``OPENERS``. Its ``options`` are a
mapping in JSON's types, from a scenario; experiments/spec/transports.py has the named combinations that
scenarios compare.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

from mrclab.hosts.collectives.channel import Channel
from mrclab.hosts.collectives.host_channel import Turn, on_one_host
from mrclab.hosts.collectives.tcp_channel import TcpChannel
from mrclab.hosts.collectives.verbs_channel import VerbsChannel
from mrclab.hosts.options import mrc_config
from mrclab.hosts.transports import make_config, random_of
from mrclab.hosts.verbs import Context
from mrclab.topologies import Fabric

Contexts = Callable[[Fabric, str, Mapping[str, Any], int, int], Context]
WITH_NIC = ("mrc", "rocev2")
"""The kinds with a NIC of our own: it can simulate longer wires, and ranks of a host can share it."""


def open_channels(
    kind: str,
    fabric: Fabric,
    host: str,
    ranks: Sequence[int],
    options: Mapping[str, Any],
    seed: int,
    propagation_ns: int = 0,
) -> tuple[Sequence[Channel], Turn]:
    """Open a channel for each rank of a host. Return the channels in order, and one ``turn`` for all of them.

    The calling thread must be in the host's network namespace. The NIC delays all received frames by
    ``propagation_ns``. Raise KeyError for a kind that does not exist, TypeError or ValueError for an unknown
    option or a bad value, ValueError for several ranks on the kernel's NIC.
    """
    if kind not in WITH_NIC:
        if len(ranks) > 1:
            raise ValueError(f"{len(ranks)} ranks on {host}: the kernel's NIC takes only one")
        channel: Channel = OPENERS[kind](fabric, host, ranks[0], options)
        return [channel], channel.turn
    context = CONTEXTS[kind](fabric, host, options, seed, propagation_ns)
    channels = {rank: VerbsChannel(context, rank, channel_qps(kind, options)) for rank in ranks}
    if len(ranks) == 1:
        return list(channels.values()), channels[ranks[0]].turn

    def turn(until_ns: int | None, others: Collection[int]) -> Collection[int]:
        readable = context.progress(until_ns, others)
        for channel in channels.values():
            channel.collect()
        return readable

    return on_one_host(channels, turn)


def channel_qps(kind: str, options: Mapping[str, Any]) -> int:
    """Return over how many queue pairs a channel splits each put.

    RoCEv2's `qps` is an option of its endpoint, which stripes messages over queue pairs itself.
    """
    return int(options.get("qps", 1)) if kind == "mrc" else 1


def endpoint_options(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a transport's options without those of the channel."""
    return {key: value for key, value in options.items() if kind != "mrc" or key != "qps"}


def check_options(kind: str, fabric: Fabric, options: Mapping[str, Any]) -> None:
    """Raise ValueError, with one line, for an option that the transport does not have or a bad value.

    This opens nothing and needs no namespace.
    """
    host = fabric.hosts[0].name
    try:
        if kind == "mrc":
            mrc_config(fabric, host, endpoint_options(kind, options))
        elif kind in WITH_NIC:
            make_config(kind, fabric, host, options)
        else:
            signature(TcpChannel).bind(fabric, host, 0, **options)
    except TypeError as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        raise ValueError(
            f"there is no option '{unknown[1]}'" if unknown else f"a value is of the wrong kind ({error})"
        ) from None


def _mrc(fabric: Fabric, host: str, options: Mapping[str, Any], seed: int, propagation_ns: int) -> Context:
    config = mrc_config(fabric, host, endpoint_options("mrc", options))
    if propagation_ns and "base_rtt_ns" not in options.get("nscc", {}):
        base_rtt_ns = config.nscc.base_rtt_ns + 2 * propagation_ns
        config = replace(config, nscc=replace(config.nscc, base_rtt_ns=base_rtt_ns))
    return Context.open(fabric, host, config, random_of(seed, host), propagation_ns)


def _rocev2(fabric: Fabric, host: str, options: Mapping[str, Any], seed: int, propagation_ns: int) -> Context:
    config = make_config("rocev2", fabric, host, options)
    return Context.open(fabric, host, config, random_of(seed, host), propagation_ns)


def _tcp(fabric: Fabric, host: str, rank: int, options: Mapping[str, Any]) -> Channel:
    return TcpChannel(fabric, host, rank, **options)


def _mptcp(fabric: Fabric, host: str, rank: int, options: Mapping[str, Any]) -> Channel:
    return TcpChannel(fabric, host, rank, mptcp=True, **options)


CONTEXTS: dict[str, Contexts] = {"mrc": _mrc, "rocev2": _rocev2}
OPENERS: dict[str, Callable[[Fabric, str, int, Mapping[str, Any]], Channel]] = {"tcp": _tcp, "mptcp": _mptcp}
