"""The options of MRC and RoCEv2 in an experiment: a mapping with JSON's types.

The options ``nscc``, ``reading`` and ``dscp`` are mappings, too. Three parameters of NSCC describe the
network: the NIC's rate, the time that a byte takes over all links of a path, and the RTT of the idle network.
If they are not given, they are computed from the topology. When a queue pair is connected,
``mrclab.hosts.nic.base_rtt`` measures the RTT.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

from mrclab.hosts.mrc import DscpMap, MrcConfig, SpecReading
from mrclab.hosts.mrc.config import NsccConfig
from mrclab.hosts.roce import DcqcnConfig, RoceConfig
from mrclab.hosts.schemes.registry import control_of, policy_of
from mrclab.p4src.contract import FRAME_OVERHEAD_BYTES
from mrclab.topologies import Fabric

SOFTWARE_RTT_NS = 200_000
"""The time that endpoints and switches in software add to an RTT at moderate load."""


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
    policy_of(config), control_of(config)  # raises an error for an unknown name before anything starts
    return config


def roce_config(
    fabric: Fabric, host: str, options: Mapping[str, Any], of: type[RoceConfig] = RoceConfig
) -> RoceConfig:
    """Return the configuration of a RoCEv2 endpoint. The default of DCQCN's line rate is the port's rate.

    ``of`` is RoceConfig or a class derived from it. Raise TypeError for an option that does not exist,
    ValueError for a bad value.
    """
    given = dict(options)
    dcqcn = given.pop("dcqcn", True)
    if dcqcn in (False, None):
        return of(**given, dcqcn=None)
    settings: Mapping[str, Any] = dcqcn if isinstance(dcqcn, Mapping) else {}
    unknown = set(settings) - {f.name for f in fields(DcqcnConfig)}
    if unknown:
        raise TypeError(f"DCQCN has no option '{min(unknown)}'")
    port = fabric.host(host).ports[0]
    config = DcqcnConfig(line_rate_bps=fabric.link(host, port.t0).profile.rate_bps)
    return of(**given, dcqcn=replace(config, **settings))


def link_bps(fabric: Fabric, host: str) -> int:
    """Return the rate of a host's NIC over all planes, bit/s."""
    return sum(fabric.link(host, port.t0).profile.rate_bps for port in fabric.host(host).ports)


def wire_time_ns(fabric: Fabric, src: str, dst: str, payload_bytes: int) -> int:
    """Return the serialisation time of a full packet over all links of the longest path, ns."""
    bits = 8 * (payload_bytes + FRAME_OVERHEAD_BYTES)
    usual = fabric.uniform_profiles
    if usual is not None:
        near, far = (bits * 10**9 // profile.rate_bps for profile in usual)
        return 2 * near + (2 * far if fabric.host(src).rack != fabric.host(dst).rack else 0)
    return max(
        sum(bits * 10**9 // fabric.link(*name.split(":")).profile.rate_bps for name in path.links)
        for path in fabric.paths(src, dst)
    )


def _delay_ns(fabric: Fabric, src: str, dst: str) -> int:
    """Return the propagation delay of the longest path, ns."""
    usual = fabric.uniform_profiles
    if usual is not None:
        near, far = (profile.delay_ns for profile in usual)
        return 2 * near + (2 * far if fabric.host(src).rack != fabric.host(dst).rack else 0)
    return max(
        sum(fabric.link(*name.split(":")).profile.delay_ns for name in path.links)
        for path in fabric.paths(src, dst)
    )


def _peers(fabric: Fabric, host: str) -> list[str]:
    """Return the hosts to which the longest path may lead.

    If all links of each kind have equal properties, one host of each rack is enough.
    """
    others = [other for other in fabric.hosts if other.name != host]
    if fabric.uniform_profiles is not None:
        others = list({other.rack: other for other in others}.values())
    return [other.name for other in others]


def path_byte_ns(fabric: Fabric, host: str) -> float:
    """Return the serialisation time of a byte over all links of the longest path, ns."""
    full = 1_000_000 - FRAME_OVERHEAD_BYTES
    return max(wire_time_ns(fabric, host, peer, full) / 1_000_000 for peer in _peers(fabric, host))


def idle_rtt_ns(fabric: Fabric, host: str, payload_bytes: int = MrcConfig().mtu_bytes) -> int:
    """Return the RTT of the idle network, ns: serialisation and propagation over the longest path."""
    return max(
        wire_time_ns(fabric, host, peer, payload_bytes) + 2 * _delay_ns(fabric, host, peer)
        for peer in _peers(fabric, host)
    )


def estimated_base_rtt_ns(fabric: Fabric, host: str, payload_bytes: int) -> int:
    """Return an estimate of the RTT between hosts in software at moderate load, ns."""
    return SOFTWARE_RTT_NS + idle_rtt_ns(fabric, host, payload_bytes)


FAST_BPS: Final = 10**10
"""A link with at least this rate is assumed to be in a data centre, with NICs and switches in hardware."""


def fast_links(fabric: Fabric) -> bool:
    """Return whether all links of a fabric have at least the rate FAST_BPS."""
    return all(link.profile.rate_bps >= FAST_BPS for link in fabric.links)


def datacenter_mrc(fabric: Fabric, host: str, longer_ns: int = 0) -> dict[str, Any]:
    """Return options of MRC for the speed of a data centre. All times are multiples of the idle RTT.

    The defaults of `MrcConfig` are for hosts in software, whose RTT is hundreds of microseconds. `longer_ns`
    is added to the RTT that is computed from the topology.
    """
    rtt_ns = idle_rtt_ns(fabric, host) + longer_ns
    window = link_bps(fabric, host) * rtt_ns // (8 * 10**9 * MrcConfig().mtu_bytes)
    return {
        "initial_rtt_ns": rtt_ns,
        "min_reorder_ns": rtt_ns,
        "max_reorder_ns": 20 * rtt_ns,
        "reorder_memory_ns": 40 * rtt_ns,
        "reorder_quiet_ns": 40 * rtt_ns,
        "tail_probe_max_ns": 4 * rtt_ns,
        "probe_interval_ns": 8 * rtt_ns,
        "probe_interval_max_ns": 128 * rtt_ns,
        "reverse_probe_min_ns": rtt_ns,
        "endpoint_timeout_ns": 20 * rtt_ns,
        "window_event_interval_ns": rtt_ns,
        "ack_timeout_exponent": max(0, (40 * rtt_ns // 1024).bit_length()),
        "mpr": min(max(128 * -(-8 * window // 128), 1024), 4096),
        "nscc": {"base_rtt_ns": rtt_ns},
    }


def datacenter_rocev2(fabric: Fabric, host: str, longer_ns: int = 0) -> dict[str, Any]:
    """Return options of RoCEv2 for the speed of a data centre.

    DCQCN's additive increase is 1/1000 of the link's rate. `longer_ns` is added to the RTT that is computed
    from the topology.
    """
    port = fabric.host(host).ports[0]
    rate_bps = fabric.link(host, port.t0).profile.rate_bps
    return {
        "window_bytes": 2 * rate_bps * (idle_rtt_ns(fabric, host) + longer_ns) // (8 * 10**9),
        "dcqcn": {"additive_increase_bps": rate_bps // 1000},
    }
