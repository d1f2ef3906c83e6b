"""A fabric written back as the YAML that makes it, so that a later process can have the same one."""

from __future__ import annotations

import json
from collections import Counter

from topologies import Fabric, LinkProfile


def topology_text(fabric: Fabric) -> str:
    """A YAML text (JSON, to be exact) from which ``build_fabric`` makes an equal fabric.

    Does not need the file that the fabric came from, which may have changed since, or gone.
    """
    usual: dict[str, LinkProfile] = {}
    for kind in ("host", "fabric"):
        profiles = Counter(link.profile for link in fabric.links if link.kind == kind)
        if profiles:
            usual[kind] = profiles.most_common(1)[0][0]
    exceptions: list[dict[str, object]] = [
        {"link": [link.a.node, link.b.node], **_profile(link.profile)}
        for link in fabric.links
        if link.profile != usual[link.kind]
    ]
    t0s = [switch for switch in fabric.switches if switch.tier == "t0"]
    t1s = [switch for switch in fabric.switches if switch.tier == "t1"]
    exceptions += [
        {"link": [t0.name, t1.name], "absent": True}
        for t0 in t0s
        for t1 in t1s
        if t0.plane == t1.plane and not fabric.has_link(t0.name, t1.name)
    ]
    links: dict[str, object] = {kind: _profile(profile) for kind, profile in usual.items()}
    if exceptions:
        links["except"] = exceptions
    document = {
        "name": fabric.name,
        "planes": fabric.planes,
        "t0": len(t0s) // fabric.planes,
        "t1": len(t1s) // fabric.planes,
        "hosts": [{"name": host.name, "rack": host.rack} for host in fabric.hosts],
        "block": str(fabric.plan.block),
        "links": links,
    }
    return json.dumps(document)


def _profile(profile: LinkProfile) -> dict[str, object]:
    return {
        "rate": f"{profile.rate_bps} bit/s",
        "delay": f"{profile.delay_ns} ns",
        "mtu": profile.mtu_bytes,
    }
