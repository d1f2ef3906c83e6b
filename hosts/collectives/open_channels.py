"""Opening a transport's channels in a host's namespace, from its kind and options."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from inspect import signature
from typing import Any

from mrclab.hosts.collectives.channel import Channel
from mrclab.hosts.collectives.host_channel import Turn, on_one_host
from mrclab.hosts.collectives.verbs_channel import VerbsChannel
from mrclab.hosts.schemes.registry import find_object
from mrclab.hosts.transports import endpoint_options, find_kind, random_of
from mrclab.hosts.verbs import Context
from mrclab.topologies import Fabric


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
    ``propagation_ns``. Raise ValueError for a kind that does not exist, TypeError or ValueError for an
    unknown option or a bad value, ValueError for several ranks on the kernel's NIC.
    """
    core = find_kind(kind)
    if core.config is None:
        if len(ranks) > 1:
            raise ValueError(f"{len(ranks)} ranks on {host}: the kernel's NIC takes only one")
        channel: Channel = _opener(core.channel)(fabric, host, ranks[0], **options)
        return [channel], channel.turn
    given = endpoint_options(kind, options)
    config = core.longer(core.config(fabric, host, given), given, propagation_ns)
    context = Context.open(fabric, host, config, random_of(seed, host), propagation_ns)
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
    return int(options.get("qps", 1)) if find_kind(kind).stripes else 1


def check_options(kind: str, fabric: Fabric, options: Mapping[str, Any]) -> None:
    """Raise ValueError, with one line, for an option that the transport does not have or a bad value.

    This opens nothing and needs no namespace.
    """
    host, core = fabric.hosts[0].name, find_kind(kind)
    try:
        if core.config is not None:
            core.config(fabric, host, endpoint_options(kind, options))
        else:
            signature(_opener(core.channel)).bind(fabric, host, 0, **options)
    except TypeError as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        raise ValueError(
            f"there is no option '{unknown[1]}'" if unknown else f"a value is of the wrong kind ({error})"
        ) from None


def _opener(name: str) -> Any:
    """Return the function that opens a channel over the kernel's sockets."""
    return find_object(name, "")
