"""The scale of a run, from its result and topology: fabric, rates, paths, round trip. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from mrclab.experiments.judging.readings import Result, transport_of, trials_of
from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.measure.metrics import BUS_FACTOR
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
"""The longest time that "a few tens of microseconds" (section 2.1) can mean."""
PAPER_TENS_US = 100.0
"""The longest time that "tens of microseconds" can mean: the limit for nine of ten faults."""
BMV2_HOP_US = 150.0
"""The time that a BMv2 switch adds to a round trip for each hop: 44 us on an idle machine, and its queues."""
HOPS = 6
"""Switches on the way across a T1 and back."""
BYPASS_SOURCE = (
    "paper, section 2.1: a failed path is bypassed within a few tens of us, here 50; as many round trips "
    "if the round trip is longer than that of section 5.2.1, 13.1 us"
)


def fabric_of(result: Result, transport: str) -> Fabric:
    """Return the fabric that a transport ran on: the scenario's, in one plane if the transport uses one."""
    parameters = result["parameters"]
    asked, where = parameters["topology"], parameters.get("topology_where")
    if isinstance(asked, dict):
        asked, where = json.dumps(asked), "topology"
    return _fabric(asked, where, bool(transport_of(result, transport).get("one_plane")))


@lru_cache(maxsize=16)
def _fabric(asked: str, where: str | None, in_one_plane: bool) -> Fabric:
    fabric = build_fabric(asked, where) if where else load_fabric(asked)
    return one_plane(fabric) if in_one_plane else fabric


def placement_of(result: Result, fabric: Fabric, repetition: int = 0) -> Placement:
    """Return the senders and receivers of a repetition, in pairs."""
    workload = dict(result["parameters"]["workload"])
    kind = workload.pop("kind")
    return place(kind, workload, fabric, int(result.get("seed", 1)) + repetition)


def nic_mbps(fabric: Fabric) -> float:
    """Return the rate of all of a NIC's links together, Mbit/s."""
    return link_bps(fabric, fabric.hosts[0].name) / 1e6


def payload_mbps(result: Result, transport: str) -> float:
    """Return the payload that full packets of MRC back to back on all of a NIC's links carry, Mbit/s."""
    options = transport_of(result, transport).get("options", {})
    payload_bytes = int(options.get("mtu_bytes", PAYLOAD_BYTES))
    frame_bytes = payload_bytes + FRAME_OVERHEAD_BYTES + bool(options.get("timestamps")) * TIMESTAMP_BYTES
    return nic_mbps(fabric_of(result, transport)) * payload_bytes / frame_bytes


def full_mbps(result: Result, transport: str, repetition: int = 0) -> float:
    """Return the payload that the workload can have at most: the rate of its senders' and receivers' links,
    or the rate that its flows ask for."""
    fabric = fabric_of(result, transport)
    placement = placement_of(result, fabric, repetition)
    share = payload_mbps(result, transport) / nic_mbps(fabric)
    asked = [flow["rate_bps"] for flow in placement.params.get("flows", ())]
    rates = sum(asked) / 1e6 if asked and all(asked) else float("inf")
    return min(most_mbps(result, transport, repetition) * share, rates)


def packets_a_second(fabric: Fabric, mbps: float) -> float:
    """Return the full packets in a rate of payload."""
    return mbps * 1e6 / 8 / PAYLOAD_BYTES


def rtt_us(result: Result, transport: str) -> float:
    """Return the round trip: measured before the faults, but no longer than that of the idle network.

    A queue that the run itself fills makes no limit wider. The idle network's is by the topology, with the
    time that software hosts and switches add.
    """
    found = [t["rtt_us"] for t in trials_of(result, transport) if t.get("rtt_us")]
    idle_us = idle_network_rtt_us(result, transport)
    return min(float(np.median(found)), idle_us) if found else idle_us


def idle_network_rtt_us(result: Result, transport: str) -> float:
    """Return the round trip of the idle network by the topology and the target, us."""
    fabric = fabric_of(result, transport)
    propagation_us = 2 * float(result["parameters"].get("propagation_ns", 0)) / 1e3
    target = result.get("target")
    estimate = idle_rtt_ns if target == SIMULATED else estimated_base_rtt_ns
    hops_us = BMV2_HOP_US * HOPS if target == "bmv2" else 0.0
    return estimate(fabric, fabric.hosts[0].name, PAYLOAD_BYTES) / 1e3 + propagation_us + hops_us


def bypass_limit_us(round_trip_us: float, paper_us: float = PAPER_BYPASS_US) -> float:
    """Return how long the paper gives a sender to detect and bypass a failed path, at this round trip."""
    return paper_us * max(1.0, round_trip_us / PAPER_RTT_US)


def capacity_mbps(fabric: Fabric, src: str, dst: str, broken: Sequence[str]) -> float:
    """Return the rate between two NICs, Mbit/s, of a sender with equal planes, with some places broken.

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
    inner = 0
    for t1 in {path.t1 for path in paths}:
        # Paths over one T1 share its links to the T0s; in three tiers several do, one for each T2.
        over = [path.links for path in paths if path.t1 == t1]
        cores = sum(min((rate(name) for name in links[2:-2]), default=first) for links in over)
        inner += min([cores, *(rate(name) for name in (over[0][1], over[0][-2]) if len(over[0]) > 2)])
    return min(first, last, inner)


def expected_share(fabric: Fabric, src: str, dst: str, broken: Sequence[str]) -> float:
    """Return the share of the fault-free capacity that is left."""
    return capacity_mbps(fabric, src, dst, broken) / capacity_mbps(fabric, src, dst, ())


def nic_mbps_of(result: Result, transport: str) -> float:
    """Return the rate of all links of a NIC together, Mbit/s; if NICs differ, of the fastest."""
    fabric = fabric_of(result, transport)
    return max(link_bps(fabric, host.name) for host in fabric.hosts) / 1e6


def most_mbps(result: Result, transport: str, repetition: int = 0) -> float:
    """Return the rate of all senders' links or of all receivers', whichever is less, Mbit/s.

    Infinite for a workload with unknown ranks.
    """
    if "kind" not in result["parameters"]["workload"]:
        return float("inf")
    fabric = fabric_of(result, transport)
    placement = placement_of(result, fabric, repetition)
    across = [(placement.hosts[a], placement.hosts[b]) for a, b in placement.pairs]
    ends = [{pair[end] for pair in across if pair[0] != pair[1]} for end in (0, 1)]
    return min(sum(link_bps(fabric, host) for host in hosts) for hosts in ends) / 1e6


def bus_factor(result: Result) -> float:
    """Return how many times its buffer each rank of a collective sends; 0 if the workload is none."""
    factor = BUS_FACTOR.get(str(result["parameters"]["workload"].get("kind")))
    if factor is None:
        return 0.0
    fabric = fabric_of(result, next(iter(result["transports"])))
    return float(factor(len(placement_of(result, fabric).hosts)))
