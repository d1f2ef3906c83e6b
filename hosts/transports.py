"""The transports of a host by name, for agents, perf, the verbs API and experiments.

A transport is a kind of endpoint with options. To add a kind, add a config class, a line in ``_CONFIGS`` and
one in ``make_endpoint``; to add a combination of options, add a line in ``TRANSPORTS``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from mrclab.hosts.endpoint import Endpoint
from mrclab.hosts.mrc import Endpoint as MrcEndpoint
from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.options import datacenter_mrc, datacenter_rocev2, mrc_config
from mrclab.hosts.rdma.paths import PortAddress
from mrclab.hosts.roce import DcqcnConfig, RoceConfig
from mrclab.hosts.roce import Endpoint as RoceEndpoint
from mrclab.hosts.schemes.registry import control_of, policy_of
from mrclab.topologies import Fabric

Config = MrcConfig | RoceConfig
DEFAULT = "mrc"


@dataclass(frozen=True, slots=True)
class Transport:
    """A kind of endpoint, and values for its options."""

    name: str
    kind: str
    """`mrc` or `rocev2`."""
    meaning: str
    options: Mapping[str, Any] = field(default_factory=dict)


DEPLOYED: Mapping[str, Any] = {
    "congestion": "nscc",
    "timestamps": True,
    "transport_ack": True,
    "reverse_evs": "set",
    "max_active_evs": 128,
    "spare_evs_per_plane": 8,
}
"""MRC as it is deployed: congestion control NSCC, timestamps (TSETH), transport ACKs (D1), answers on the
receiver's own EVs, 128 EVs in use [P1 §2.1] and a backup set [P1 §2.4], whose size, 32 on four planes, is
ours. If a fabric has fewer paths, all are in use, without backups."""

DATACENTER: Mapping[str, Any] = {
    **DEPLOYED,
    "mpr": 4096,
    "initial_rtt_ns": 10_000,
    "min_reorder_ns": 1_000,
    "max_reorder_ns": 100_000,
    "reorder_memory_ns": 1_000_000,
    "reorder_quiet_ns": 1_000_000,
    "tail_probe_max_ns": 100_000,
    "probe_interval_ns": 100_000,
    "probe_interval_max_ns": 1_600_000,
    "reverse_probe_min_ns": 10_000,
    "endpoint_timeout_ns": 100_000,
    "stall_grace_ns": 100_000,
    "nscc": {"base_rtt_ns": 7_000},
}
"""MRC with its times for a fabric in hardware: RTTs of 5 to 7 us, ports of 100 Gbit/s and more. A quarter of
the RTT is the reordering window, and the receive window lasts 170 us at 800 Gbit/s. NSCC's link rate comes
from the topology, and its base RTT falls to the least that is seen. For simulators; hosts in software are
forty times slower."""

TRANSPORTS: Mapping[str, Transport] = {
    t.name: t
    for t in (
        Transport("mrc", "mrc", "MRC: sprays over all planes, retires paths that lose", DEPLOYED),
        Transport(
            "oblivious",
            "mrc",
            "MRC's spraying without EV health: keeps using paths that lose",
            {**DEPLOYED, "ev_health": False},
        ),
        Transport("rocev2", "rocev2", "RoCEv2: one path per queue pair, go-back-N, DCQCN"),
        Transport("rocev2-16qp", "rocev2", "RoCEv2, each message striped over 16 queue pairs", {"qps": 16}),
    )
}


def make_config(name: str, fabric: Fabric, host: str, options: Mapping[str, Any] | None = None) -> Config:
    """Return the configuration of a transport on a host; ``options`` override the transport's own.

    Parameters of DCQCN and NSCC that describe the network come from the topology unless they are given. Raise
    KeyError for a transport that does not exist, TypeError for an unknown option, ValueError for a bad value.
    """
    transport = TRANSPORTS[name]
    return _CONFIGS[transport.kind](fabric, host, {**transport.options, **(options or {})})


def random_of(seed: int, host: str) -> random.Random:
    """Return the random numbers of a host's endpoint.

    Hosts share none, and neither do repetitions, whose seeds follow one another.
    """
    return random.Random(f"{seed}/{host}")


def make_endpoint(addresses: Sequence[PortAddress], config: Config, rng: random.Random) -> Endpoint:
    """Create the endpoint for a configuration."""
    if isinstance(config, RoceConfig):
        return RoceEndpoint(addresses, config, rng)
    return MrcEndpoint(addresses, config, rng, control_of(config), policy_of(config))


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


def datacenter_options(kind: str, fabric: Fabric, host: str, longer_ns: int = 0) -> dict[str, Any]:
    """Return the options of a kind of endpoint that suit links of a data centre's speed.

    The RTT they are for is `longer_ns` more than the topology's. Options that are mappings themselves are to
    be merged key by key: `merged` does that.
    """
    return {"mrc": datacenter_mrc, "rocev2": datacenter_rocev2}[kind](fabric, host, longer_ns)


def merged(options: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with others on top; mappings inside both are merged key by key."""
    result = {**options, **over}
    for key in options.keys() & over.keys():
        if isinstance(options[key], Mapping) and isinstance(over[key], Mapping):
            result[key] = {**options[key], **over[key]}
    return result


_CONFIGS: Mapping[str, Callable[[Fabric, str, Mapping[str, Any]], Config]] = {
    "mrc": mrc_config,
    "rocev2": _roce_config,
}
