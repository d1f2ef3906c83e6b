"""The transports that a host can speak, by name: what agents, perf, the verbs API and experiments open.

A transport is a kind of endpoint with options. A new kind is a config class, a line in ``_CONFIGS`` and one
in ``make_endpoint``; a new combination of options is a line in ``TRANSPORTS``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from hosts.endpoint import Endpoint
from hosts.mrc import Endpoint as MrcEndpoint
from hosts.mrc import MrcConfig
from hosts.options import mrc_config
from hosts.rdma.paths import PortAddress
from hosts.roce import DcqcnConfig, RoceConfig
from hosts.roce import Endpoint as RoceEndpoint
from topologies import Fabric

Config = MrcConfig | RoceConfig
DEFAULT = "mrc"


@dataclass(frozen=True, slots=True)
class Transport:
    """A kind of endpoint and what its options are set to."""

    name: str
    kind: str
    """`mrc` or `rocev2`."""
    meaning: str
    options: Mapping[str, Any] = field(default_factory=dict)


TRANSPORTS: Mapping[str, Transport] = {
    t.name: t
    for t in (
        Transport("mrc", "mrc", "MRC: sprays over all planes, retires paths that lose"),
        Transport(
            "oblivious",
            "mrc",
            "MRC's spray with EV health switched off: goes on using paths that lose",
            {"ev_health": False},
        ),
        Transport("rocev2", "rocev2", "RoCEv2: one path per queue pair, go-back-N, DCQCN"),
        Transport("rocev2-16qp", "rocev2", "RoCEv2, each message striped over 16 queue pairs", {"qps": 16}),
    )
}


def make_config(name: str, fabric: Fabric, host: str, options: Mapping[str, Any] | None = None) -> Config:
    """The options of a transport on a host, with some set on top.

    What DCQCN and NSCC must know of the network comes from the topology, where it is not given. Raises
    KeyError on a transport that does not exist, TypeError on an option it has not got, ValueError on a value
    that makes no sense.
    """
    transport = TRANSPORTS[name]
    return _CONFIGS[transport.kind](fabric, host, {**transport.options, **(options or {})})


def make_endpoint(addresses: Sequence[PortAddress], config: Config, rng: random.Random) -> Endpoint:
    """The endpoint that a config is of."""
    if isinstance(config, RoceConfig):
        return RoceEndpoint(addresses, config, rng)
    return MrcEndpoint(addresses, config, rng)


def _roce_config(fabric: Fabric, host: str, options: Mapping[str, Any]) -> RoceConfig:
    given = dict(options)
    dcqcn = given.pop("dcqcn", True)
    if dcqcn in (False, None):
        return RoceConfig(**given, dcqcn=None)
    settings: Mapping[str, Any] = dcqcn if isinstance(dcqcn, Mapping) else {}
    unknown = set(settings) - {f.name for f in fields(DcqcnConfig)}
    if unknown:
        raise TypeError(f"DCQCN has no option '{min(unknown)}'")
    port = fabric.host(host).ports[0]
    config = DcqcnConfig(line_rate_bps=fabric.link(host, port.t0).profile.rate_bps)
    return RoceConfig(**given, dcqcn=replace(config, **settings))


_CONFIGS: Mapping[str, Callable[[Fabric, str, Mapping[str, Any]], Config]] = {
    "mrc": mrc_config,
    "rocev2": _roce_config,
}
