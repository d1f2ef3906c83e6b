"""MRC's options as experiments give them: a mapping in JSON's types.

``nscc``, ``reading`` and ``dscp`` are mappings inside it. Three of NSCC's parameters describe the network and
come from the topology unless they are given: the NIC's rate, the time that a byte takes over all links of a
path, and the RTT of the idle network, which ``hosts.nic.base_rtt`` measures once a queue pair is connected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from hosts.mrc import DscpMap, MrcConfig, SpecReading
from hosts.mrc.congestion.nscc import NsccConfig
from hosts.schemes.registry import control_of, policy_of
from p4src.contract import FRAME_OVERHEAD_BYTES
from topologies import Fabric

SOFTWARE_RTT_NS = 200_000
"""What endpoints and switches in software add to an RTT at moderate load."""


def mrc_config(fabric: Fabric, host: str, options: Mapping[str, Any]) -> MrcConfig:
    """Return the configuration of an endpoint on a host of a fabric.

    Raise TypeError for an option that does not exist, ValueError for a bad value.
    """
    rest = dict(options)
    given = dict(rest.pop("nscc", {}))
    unknown = set(given) - {field.name for field in fields(NsccConfig)}
    if unknown:
        raise TypeError(f"nscc has no option '{sorted(unknown)[0]}'")
    if "reading" in rest:
        rest["reading"] = SpecReading(**rest["reading"])
    if "dscp" in rest:
        rest["dscp"] = DscpMap(**rest["dscp"])
    mtu_bytes = rest.get("mtu_bytes", MrcConfig().mtu_bytes)
    nscc = NsccConfig(
        **{
            "link_bps": link_bps(fabric, host),
            "base_rtt_ns": estimated_base_rtt_ns(fabric, host, mtu_bytes),
            "byte_ns": path_byte_ns(fabric, host),
            **given,
        }
    )
    config = MrcConfig(**rest, nscc=nscc)
    policy_of(config), control_of(config)  # Refuse a name that nothing has before anything is started.
    return config


def link_bps(fabric: Fabric, host: str) -> int:
    """Return the rate of a host's NIC over all planes, bit/s."""
    return sum(fabric.link(host, port.t0).profile.rate_bps for port in fabric.host(host).ports)


def wire_time_ns(fabric: Fabric, src: str, dst: str, payload_bytes: int) -> int:
    """Return the serialisation time of a full packet over all links of a path, ns: the longest path's."""
    bits = 8 * (payload_bytes + FRAME_OVERHEAD_BYTES)
    return max(
        sum(bits * 10**9 // fabric.link(*name.split(":")).profile.rate_bps for name in path.links)
        for path in fabric.paths(src, dst)
    )


def path_byte_ns(fabric: Fabric, host: str) -> float:
    """Return the serialisation time of a byte over all links of a path, ns: the longest path's."""
    full = 1_000_000 - FRAME_OVERHEAD_BYTES
    return max(
        wire_time_ns(fabric, host, peer.name, full) / 1_000_000 for peer in fabric.hosts if peer.name != host
    )


def estimated_base_rtt_ns(fabric: Fabric, host: str, payload_bytes: int) -> int:
    """Return the idle network's RTT by the topology, ns: serialisation, propagation and software."""
    found = 0
    for peer in (other.name for other in fabric.hosts if other.name != host):
        delays = [
            sum(fabric.link(*name.split(":")).profile.delay_ns for name in path.links)
            for path in fabric.paths(host, peer)
        ]
        found = max(found, wire_time_ns(fabric, host, peer, payload_bytes) + 2 * max(delays))
    return SOFTWARE_RTT_NS + found
