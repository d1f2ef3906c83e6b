"""The transports of a host by name, for agents, perf, the verbs API and experiments.

Each transport is an entry of `table`. `kinds` has the protocols that transports use. A new transport needs an
entry and, if its protocol is new, a module with the protocol. The entry and the module may be outside of
mrclab's source tree (docs/your-own.md).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from mrclab.hosts.endpoint import Config
from mrclab.hosts.transports.kinds import KINDS, Kind, find_kind, make_endpoint
from mrclab.hosts.transports.table import DEPLOYED, TRANSPORTS, Look, Transport, find_transport
from mrclab.topologies import Fabric

__all__ = [
    "DEFAULT",
    "DEPLOYED",
    "KINDS",
    "TRANSPORTS",
    "Config",
    "Kind",
    "Look",
    "Transport",
    "endpoint_options",
    "find_kind",
    "find_transport",
    "make_config",
    "make_endpoint",
    "merged",
    "random_of",
]

DEFAULT = "mrc"


def make_config(name: str, fabric: Fabric, host: str, options: Mapping[str, Any] | None = None) -> Config:
    """Return the configuration of a transport on a host; ``options`` override the transport's options.

    Parameters of DCQCN and NSCC that describe the network come from the topology, if no option sets them.
    Raise ValueError if there is no such transport, if it uses the kernel's sockets, or if a value is bad;
    TypeError for an unknown option.
    """
    transport = find_transport(name)
    if transport.core.config is None:
        raise ValueError(f"{name} uses the kernel's sockets: it has no endpoint")
    config: Config = transport.core.config(fabric, host, {**transport.options, **(options or {})})
    return config


def endpoint_options(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a transport's endpoint.

    Leave out `qps` if `qps` is an option of the transport's channel and not of the endpoint. Raise ValueError
    for an unknown kind.
    """
    stripes = find_kind(kind).stripes
    return {key: value for key, value in options.items() if not stripes or key != "qps"}


def random_of(seed: int, host: str) -> random.Random:
    """Return the random generator of a host's endpoint.

    Each host and each seed has different random numbers.
    """
    return random.Random(f"{seed}/{host}")


def merged(options: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``options`` overridden by ``over``. Two mappings with the same key are merged."""
    result = {**options, **over}
    for key in options.keys() & over.keys():
        if isinstance(options[key], Mapping) and isinstance(over[key], Mapping):
            result[key] = {**options[key], **over[key]}
    return result
