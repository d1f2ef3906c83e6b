"""The kinds of transports (protocols of mrclab's NIC and of the kernel), and queue pair attributes as JSON.

A kind is an object of class `Kind`. `KINDS` has mrclab's kinds. Another kind is named ``module:OBJECT``, or a
package registers it as an entry point of the group ``mrclab.transport_kinds`` (docs/your-own.md).

Before two ends of a queue pair connect, they exchange its attributes as JSON (SPEC section 10, Table 10-1).
The key ``transport`` has the name of the kind. Attributes of MRC do not have this key.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal

from mrclab.hosts.endpoint import Config, Endpoint
from mrclab.hosts.mrc import Endpoint as MrcEndpoint
from mrclab.hosts.mrc import MrcConfig, QpAttributes
from mrclab.hosts.mrc.config import ENDLESS_RETRIES
from mrclab.hosts.options import datacenter_mrc, datacenter_rocev2, mrc_config, roce_config
from mrclab.hosts.rdma.paths import PortAddress
from mrclab.hosts.roce import Endpoint as RoceEndpoint
from mrclab.hosts.roce import RoceAttributes
from mrclab.hosts.roce.failover import FailoverEndpoint
from mrclab.hosts.roce.lanes import FailoverAttributes, FailoverConfig
from mrclab.hosts.schemes.registry import control_of, find_object, policy_of
from mrclab.topologies import Fabric

GROUP = "mrclab.transport_kinds"
Routing = Literal["srv6", "ecmp", "structured", "destination", "adaptive", "flowlet", "frr"]
LOADED: tuple[Routing, ...] = ("adaptive", "flowlet")
"""Routings in which switches choose the uplink by the loads of their ports."""
Options = Mapping[str, Any]


def _no_options(fabric: Fabric, host: str, longer_ns: int) -> Options:
    return {}


def _same(config: Any, options: Options, longer_ns: int) -> Any:
    return config


@dataclass(frozen=True, slots=True)
class Kind:
    """A protocol, and the properties of this protocol that other modules need.

    A protocol of mrclab's NIC has `config` and `endpoint`. A protocol of the kernel has `channel` instead.
    """

    name: str
    routings: tuple[Routing, ...]
    """The routings with which fabrics can forward packets of this kind."""
    config: Callable[[Fabric, str, Options], Any] | None = None
    """Return the configuration for a host of a fabric from options. Raise TypeError for an unknown option,
    ValueError for a bad value. The class of the configuration has `kind`, the name of this kind."""
    endpoint: Callable[[Sequence[PortAddress], Any, random.Random], Endpoint] | None = None
    """Create the endpoint of a NIC with these ports."""
    objects: Callable[[Sequence[PortAddress], Any, random.Random], Endpoint] | None = None
    """Create an endpoint for a simulator that exchanges objects instead of frames (`mrclab.hosts.mrc.codec`).
    Such packets use segment lists. None: the kind has only frames."""
    attributes: Callable[..., Any] = QpAttributes
    """The dataclass that the two ends exchange before they connect."""
    fast: Callable[[Fabric, str, int], Options] = _no_options
    """Return options for the link rates of a data centre. The last argument is an additional RTT, ns."""
    longer: Callable[[Any, Options, int], Any] = _same
    """Return the configuration for wires with an additional delay. The arguments are the configuration, the
    user's options (which must not change), and this delay in each direction, ns."""
    by_routing: Mapping[str, Options] = field(default_factory=dict)
    """Additional options for each routing."""
    patient: Options = field(default_factory=dict)
    """Options that let connections survive faults that last for minutes."""
    stripes: bool = False
    """If True, the channel splits each put over several queue pairs; the option `qps` is their number."""
    sprays: bool = False
    """If True, frames of this kind have EVs, and endpoints report the EVs that they retire."""
    channel: str = ""
    """``module:function`` that opens a channel over the kernel's sockets."""
    trace: Literal["packets", "tcp", ""] = "packets"
    """How a capture is read: as packets of queue pairs, as TCP segments, or not at all (empty)."""

    @property
    def has_nic(self) -> bool:
        """Return True if mrclab's NIC runs the protocol. Such a protocol also runs in virtual time."""
        return self.endpoint is not None


def _mrc(ports: Sequence[PortAddress], config: MrcConfig, rng: random.Random) -> Endpoint:
    return MrcEndpoint(ports, config, rng, control_of(config), policy_of(config))


def _mrc_objects(ports: Sequence[PortAddress], config: MrcConfig, rng: random.Random) -> Endpoint:
    made = (ports, config, rng, control_of(config), policy_of(config))
    return MrcEndpoint(*made, objects=True, payloads=True)


def _longer_mrc(config: MrcConfig, options: Options, longer_ns: int) -> MrcConfig:
    if not longer_ns or "base_rtt_ns" in options.get("nscc", {}):
        return config
    nscc = replace(config.nscc, base_rtt_ns=config.nscc.base_rtt_ns + 2 * longer_ns)
    return replace(config, nscc=nscc)


ROCE_TIMEOUT_EXPONENT = 17
"""A timeout of 0.54 s. On a dead path a connection ends after 7 retries (4 s). NCCL's timeout is 4.3 s."""

KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            name="mrc",
            routings=("srv6", "ecmp", "structured", "adaptive", "flowlet", "frr"),
            config=mrc_config,
            endpoint=_mrc,
            objects=_mrc_objects,
            fast=datacenter_mrc,
            longer=_longer_mrc,
            by_routing={
                **{routing: {"ev_mode": "ecmp"} for routing in ("ecmp", "adaptive", "flowlet")},
                "structured": {"ev_mode": "structured"},
            },
            patient={"timestamps": True, "exponential_retries": ENDLESS_RETRIES},
            stripes=True,
            sprays=True,
        ),
        Kind(
            name="rocev2",
            routings=("srv6", "ecmp", "destination", "adaptive", "flowlet", "frr"),
            config=roce_config,
            endpoint=RoceEndpoint,
            attributes=RoceAttributes,
            fast=datacenter_rocev2,
            by_routing={
                "srv6": {"encapsulation": "srv6"},
                **{
                    routing: {"encapsulation": "plain"} for routing in ("ecmp", "destination", *LOADED, "frr")
                },
            },
            patient={"timeout_exponent": ROCE_TIMEOUT_EXPONENT},
        ),
        Kind(
            name="rocev2-failover",
            routings=("srv6", "ecmp"),
            config=partial(roce_config, of=FailoverConfig),
            endpoint=FailoverEndpoint,
            attributes=FailoverAttributes,
            fast=datacenter_rocev2,
            by_routing={"srv6": {"encapsulation": "srv6"}, "ecmp": {"encapsulation": "plain"}},
            patient={"timeout_exponent": ROCE_TIMEOUT_EXPONENT},
        ),
        Kind(
            name="tcp",
            routings=("srv6", "ecmp", "frr"),
            channel="mrclab.hosts.collectives.tcp_channel:TcpChannel",
            trace="tcp",
        ),
        Kind(
            name="mptcp",
            routings=("srv6", "ecmp", "frr"),
            channel="mrclab.hosts.collectives.tcp_channel:mptcp_channel",
            trace="",
        ),
    )
}


def find_kind(name: str) -> Kind:
    """Return the kind with this name. Raise ValueError, with a message of one line, if it does not exist."""
    if name in KINDS:
        return KINDS[name]
    found = find_object(name, GROUP)
    if not isinstance(found, Kind):
        raise ValueError(f"no kind of transport '{name}': choose {', '.join(KINDS)}, or module:KIND")
    return found


def kind_in_use(name: str) -> Kind:
    """Return the kind of transport that a peer names: a kind of mrclab, or a kind of a loaded module.

    Unlike `find_kind`, this function imports nothing, because the name comes from the network. Raise
    ValueError if there is no such kind.
    """
    if name in KINDS:
        return KINDS[name]
    module, _, attribute = name.partition(":")
    found = getattr(sys.modules.get(module), attribute, None) if attribute else None
    if not isinstance(found, Kind):
        raise ValueError(f"the peer's transport is '{name}', which this host does not run")
    return found


def make_endpoint(addresses: Sequence[PortAddress], config: Config, rng: random.Random) -> Endpoint:
    """Create the endpoint for a configuration."""
    kind = find_kind(config.kind)
    assert kind.endpoint is not None
    return kind.endpoint(addresses, config, rng)


MRC = "mrc"


def attributes_to_dict(attributes: Any) -> dict[str, Any]:
    """Return the attributes in JSON's types, with addresses in hexadecimal."""
    data = asdict(attributes)
    data["ports"] = [
        {"port": p.port, "mac": p.mac.hex(), "address": p.address.hex()} for p in attributes.ports
    ]
    if attributes.kind != MRC:
        data["transport"] = attributes.kind
    return data


def attributes_from_dict(data: Mapping[str, Any]) -> Any:
    """Reverse ``attributes_to_dict``. Raise KeyError, TypeError or ValueError for an invalid mapping."""
    ports = tuple(
        PortAddress(p["port"], bytes.fromhex(p["mac"]), bytes.fromhex(p["address"])) for p in data["ports"]
    )
    given = {**data, "ports": ports}
    return kind_in_use(given.pop("transport", MRC)).attributes(**given)
