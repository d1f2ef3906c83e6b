"""The core's options as whoever runs an experiment writes them: a mapping in JSON's types.

``nscc`` is a mapping of its own. What NSCC must know of the network is filled in from the topology where it
is not given: how fast the NIC is, and the RTT of the idle network, which ``hosts.nic.base_rtt`` finds out
better once a queue pair is connected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from hosts.mrc import DscpMap, MrcConfig
from hosts.mrc.nscc import NsccConfig
from p4src.contract import FRAME_OVERHEAD_BYTES
from topologies import Fabric

SOFTWARE_RTT_NS = 200_000
"""What endpoints and switches in software add to an RTT under a moderate load."""


def mrc_config(fabric: Fabric, host: str, options: Mapping[str, Any]) -> MrcConfig:
    """The options of an endpoint on a host of a fabric.

    Raises TypeError on an option that does not exist, ValueError on a value that does not fit.
    """
    rest = dict(options)
    given = dict(rest.pop("nscc", {}))
    unknown = set(given) - {field.name for field in fields(NsccConfig)}
    if unknown:
        raise TypeError(f"nscc has no option '{sorted(unknown)[0]}'")
    if "dscp" in rest:
        rest["dscp"] = DscpMap(**rest["dscp"])
    mtu_bytes = rest.get("mtu_bytes", MrcConfig().mtu_bytes)
    nscc = NsccConfig(
        **{
            "link_bps": link_bps(fabric, host),
            "base_rtt_ns": estimated_base_rtt_ns(fabric, host, mtu_bytes),
            **given,
        }
    )
    return MrcConfig(**rest, nscc=nscc)


def link_bps(fabric: Fabric, host: str) -> int:
    """What a host's NIC can send, all planes together."""
    return sum(fabric.link(host, port.t0).profile.rate_bps for port in fabric.host(host).ports)


def wire_time_ns(fabric: Fabric, src: str, dst: str, payload_bytes: int) -> int:
    """The time that links take to put a full packet on all wires of a way, one by one: the longest way's."""
    bits = 8 * (payload_bytes + FRAME_OVERHEAD_BYTES)
    return max(
        sum(bits * 10**9 // fabric.link(*name.split(":")).profile.rate_bps for name in path.links)
        for path in fabric.paths(src, dst)
    )


def estimated_base_rtt_ns(fabric: Fabric, host: str, payload_bytes: int) -> int:
    """The RTT of the idle network as the topology has it: wires, delays, and software at both ends."""
    found = 0
    for peer in (other.name for other in fabric.hosts if other.name != host):
        delays = [
            sum(fabric.link(*name.split(":")).profile.delay_ns for name in path.links)
            for path in fabric.paths(host, peer)
        ]
        found = max(found, wire_time_ns(fabric, host, peer, payload_bytes) + 2 * max(delays))
    return SOFTWARE_RTT_NS + found
