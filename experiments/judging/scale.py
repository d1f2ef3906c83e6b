"""The scale of a run, from its result and topology: fabric, rates, paths, round trip. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from mrclab.experiments.judging.readings import Result, transport_of, trials_of
from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.spec.model import SIMULATED
from mrclab.experiments.spec.placement import Placement, place
from mrclab.hosts.options import estimated_base_rtt_ns, idle_rtt_ns, link_bps
from mrclab.p4src.contract import FRAME_OVERHEAD_BYTES, TIMESTAMP_BYTES
from mrclab.topologies import Fabric, build_fabric, load_fabric, one_plane
from mrclab.topologies.model import Path

PAYLOAD_BYTES = 4096

PAPER_RTT_US = 2 * 6.54
"""Round trip across a T1 on the paper's testbed: twice the latency of a write of 2 bytes (section 5.2.1)."""
PAPER_BYPASS_US = 50.0
"""The longest that "a few tens of microseconds" (section 2.1) can be taken for."""
BYPASS_SOURCE = (
    "paper, section 2.1: a failed path is bypassed within a few tens of us, here 50; as many round trips "
    "where the round trip is longer than that of section 5.2.1, 13.1 us"
)


def fabric_of(result: Result, transport: str) -> Fabric:
    """Return the fabric that a transport ran on: the scenario's, in one plane where the transport is so."""
    parameters = result["parameters"]
    asked = parameters["topology"]
    if isinstance(asked, dict):
        fabric = build_fabric(json.dumps(asked), "topology")
    else:
        where = parameters.get("topology_where")
        fabric = build_fabric(asked, where) if where else load_fabric(asked)
    return one_plane(fabric) if transport_of(result, transport).get("one_plane") else fabric


def placement_of(result: Result, fabric: Fabric, repetition: int = 0) -> Placement:
    """Return who sent to whom in a repetition."""
    workload = dict(result["parameters"]["workload"])
    kind = workload.pop("kind")
    return place(kind, workload, fabric, int(result.get("seed", 1)) + repetition)


def nic_mbps(fabric: Fabric) -> float:
    """Return what a NIC's links carry together, Mbit/s."""
    return link_bps(fabric, fabric.hosts[0].name) / 1e6


def payload_mbps(result: Result, transport: str) -> float:
    """Return the payload that full packets of MRC back to back on all of a NIC's links carry, Mbit/s."""
    options = transport_of(result, transport).get("options", {})
    payload_bytes = int(options.get("mtu_bytes", PAYLOAD_BYTES))
    frame_bytes = payload_bytes + FRAME_OVERHEAD_BYTES + bool(options.get("timestamps")) * TIMESTAMP_BYTES
    return nic_mbps(fabric_of(result, transport)) * payload_bytes / frame_bytes


def packets_a_second(fabric: Fabric, mbps: float) -> float:
    """Return the full packets in a rate of payload."""
    return mbps * 1e6 / 8 / PAYLOAD_BYTES


def rtt_us(result: Result, transport: str) -> float:
    """Return the round trip: measured before the faults, or by the topology where nothing was measured."""
    found = [t["rtt_us"] for t in trials_of(result, transport) if t.get("rtt_us")]
    if found:
        return float(np.median(found))
    fabric = fabric_of(result, transport)
    propagation_us = 2 * float(result["parameters"].get("propagation_ns", 0)) / 1e3
    estimate = idle_rtt_ns if result.get("target") == SIMULATED else estimated_base_rtt_ns
    return estimate(fabric, fabric.hosts[0].name, PAYLOAD_BYTES) / 1e3 + propagation_us


def bypass_limit_us(round_trip_us: float) -> float:
    """Return how long the paper gives a sender to detect and bypass a failed path, at this round trip."""
    return PAPER_BYPASS_US * max(1.0, round_trip_us / PAPER_RTT_US)


def capacity_mbps(fabric: Fabric, src: str, dst: str, broken: Sequence[str]) -> float:
    """Return what a sender that keeps its planes equal can carry between two NICs, with some places broken.

    A plane carries no more than either NIC's port and the paths that are left, each at its slowest link. A
    plane without a path is out of service; the others get equal shares, so the slowest of them sets the rate
    of each (paper, section 4).
    """
    faults = [FaultRecord("blackhole", where, 0, 0) for where in broken]
    planes: dict[int, list[Path]] = {}
    for path in fabric.paths(src, dst):
        if not any(fault.breaks(path) for fault in faults):
            planes.setdefault(path.plane, []).append(path)
    if not planes:
        return 0.0
    return len(planes) * min(_plane_bps(fabric, paths) for paths in planes.values()) / 1e6


def _plane_bps(fabric: Fabric, paths: Sequence[Path]) -> int:
    def rate(name: str) -> int:
        return fabric.link(*name.split(":")).profile.rate_bps

    first, last = (rate(paths[0].links[end]) for end in (0, -1))
    inner = sum(min((rate(name) for name in path.links[1:-1]), default=first) for path in paths)
    return min(first, last, inner)


def expected_share(fabric: Fabric, src: str, dst: str, broken: Sequence[str]) -> float:
    """Return the share of the fault-free capacity that is left."""
    return capacity_mbps(fabric, src, dst, broken) / capacity_mbps(fabric, src, dst, ())
