"""One fabric derived from another, and a fabric as text for another process."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from ipaddress import IPv6Network
from typing import Any

from mrclab.linux.errors import InputError
from mrclab.topologies.build import build
from mrclab.topologies.model import Fabric
from mrclab.topologies.spec import (
    FabricSpec,
    HostSpec,
    LinkException,
    LinkKind,
    LinkProfile,
    parse_switch_name,
)


def spec_of(fabric: Fabric) -> FabricSpec:
    """Return a definition from which ``build`` makes an equal fabric."""
    t0s, all_t1s, all_t2s = (
        sum(switch.tier == tier for switch in fabric.switches) // fabric.planes for tier in ("t0", "t1", "t2")
    )
    t1s = all_t1s // fabric.pods
    usual = {kind: _usual(fabric, kind) for kind in ("host", "fabric")}
    differing = [
        LinkException((link.a.node, link.b.node), False, *_values(link.profile))
        for link in fabric.links
        if link.profile != usual[link.kind]
    ]
    whole = FabricSpec(
        fabric.name,
        fabric.planes,
        t0s,
        t1s,
        tuple(HostSpec(host.name, host.rack) for host in fabric.hosts),
        fabric.plan.block,
        usual["host"],
        usual["fabric"],
        tuple(differing),
        fabric.classes,
        fabric.pods,
        all_t2s // t1s if t1s else 0,
    )
    absent = [LinkException(ends, absent=True) for ends in whole.inner_links() if not fabric.has_link(*ends)]
    return replace(whole, exceptions=(*differing, *absent))


def _usual(fabric: Fabric, kind: LinkKind) -> LinkProfile:
    """Return the profile that most links of a kind have."""
    profiles = Counter(link.profile for link in fabric.links if link.kind == kind)
    return profiles.most_common(1)[0][0] if profiles else _usual(fabric, "host")


def _values(profile: LinkProfile) -> tuple[int, int, int]:
    return profile.rate_bps, profile.delay_ns, profile.mtu_bytes


def one_plane(fabric: Fabric) -> Fabric:
    """Return the fabric with all its bandwidth in one plane, for transports that know one path at a time.

    It has as many T0s, T1s and hosts, and its links are as fast as those of all planes together. Links that
    differ from the others of their kind do so as in plane 0.
    """
    if fabric.planes == 1:
        return fabric
    spec = spec_of(fabric)

    def faster(profile: LinkProfile) -> LinkProfile:
        return replace(profile, rate_bps=profile.rate_bps * fabric.planes)

    exceptions = tuple(
        replace(entry, rate_bps=entry.rate_bps and entry.rate_bps * fabric.planes)
        for entry in spec.exceptions
        if _plane(entry) == 0
    )
    spec = replace(
        spec,
        name=f"{fabric.name}-1plane",
        planes=1,
        host_links=faster(spec.host_links),
        fabric_links=faster(spec.fabric_links),
        exceptions=exceptions,
    )
    return build(spec, f"{fabric.name} in one plane")


def _plane(entry: LinkException) -> int:
    return next(switch[0] for end in entry.ends if (switch := parse_switch_name(end)) is not None)


def fabric_text(fabric: Fabric) -> str:
    """Return a text from which ``fabric_from_text`` makes an equal fabric, in this process or another.

    It does not depend on the file that the fabric came from.
    """
    spec = spec_of(fabric)
    return json.dumps({**asdict(spec), "block": str(spec.block)})


def fabric_from_text(text: str) -> Fabric:
    """Return the fabric of a text of ``fabric_text``. Raise InputError on any other text."""
    try:
        data: dict[str, Any] = json.loads(text)
        spec = FabricSpec(
            **{
                **data,
                "hosts": tuple(HostSpec(**host) for host in data["hosts"]),
                "block": IPv6Network(data["block"]),
                "host_links": LinkProfile(**data["host_links"]),
                "fabric_links": LinkProfile(**data["fabric_links"]),
                "core_links": LinkProfile(**core) if (core := data.get("core_links")) else None,
                "exceptions": tuple(_exception(entry) for entry in data["exceptions"]),
                "classes": tuple((int(dscp), str(name)) for dscp, name in data["classes"]),
            }
        )
        return build(spec, spec.name)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"this text describes no fabric: {error!r}") from None


def _exception(entry: dict[str, Any]) -> LinkException:
    a, b = entry["ends"]
    return LinkException(**{**entry, "ends": (str(a), str(b))})
