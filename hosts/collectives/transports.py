"""From a transport's kind and options to an open channel, in the host's namespace.

A transport is added here, by one line in ``OPENERS``. What each takes as ``options`` is a mapping in JSON's
types, from a scenario; experiments/transports.py has the named combinations that scenarios compare.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from hosts.collectives.channel import Channel
from hosts.collectives.tcp_channel import TcpChannel
from hosts.collectives.verbs_channel import VerbsChannel
from hosts.mrc import MrcConfig
from hosts.transports import make_config
from hosts.verbs import Context
from topologies import Fabric

Opener = Callable[[Fabric, str, int, Mapping[str, Any], int], Channel]


def open_channel(
    kind: str, fabric: Fabric, host: str, rank: int, options: Mapping[str, Any], seed: int
) -> Channel:
    """Opens the host's end of a transport; the calling thread must be in the host's network namespace.

    Raises KeyError on a kind that does not exist, TypeError or ValueError on options that it has not got.
    """
    return OPENERS[kind](fabric, host, rank, options, seed)


def _mrc(fabric: Fabric, host: str, rank: int, options: Mapping[str, Any], seed: int) -> Channel:
    known = {field.name for field in fields(MrcConfig)}
    wanted = {key: value for key, value in options.items() if key in known}
    config = make_config("mrc", fabric, host, wanted)
    context = Context.open(fabric, host, config, random.Random(seed))
    return VerbsChannel(context, rank, options.get("qps", 1))


def _rocev2(fabric: Fabric, host: str, rank: int, options: Mapping[str, Any], seed: int) -> Channel:
    # `qps` is the endpoint's own option: it stripes messages over them by itself.
    config = make_config("rocev2", fabric, host, options)
    return VerbsChannel(Context.open(fabric, host, config, random.Random(seed)), rank)


def _tcp(fabric: Fabric, host: str, rank: int, options: Mapping[str, Any], _seed: int) -> Channel:
    return TcpChannel(fabric, host, rank, **options)


def _mptcp(fabric: Fabric, host: str, rank: int, options: Mapping[str, Any], _seed: int) -> Channel:
    return TcpChannel(fabric, host, rank, mptcp=True, **options)


OPENERS: dict[str, Opener] = {"mrc": _mrc, "rocev2": _rocev2, "tcp": _tcp, "mptcp": _mptcp}
