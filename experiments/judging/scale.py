"""The scale of a run, computed from its result and topology: fabric, rates, paths, round-trip time."""

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
"""The paper's round-trip time across a T1, us: twice the latency of a write of 2 bytes (section 5.2.1)."""
PAPER_BYPASS_US = 50.0
"""The limit, us, that mrclab uses for the paper's "a few tens of microseconds" (section 2.1)."""
PAPER_TENS_US = 100.0
"""The limit, us, that mrclab uses for "tens of microseconds". Nine of ten times must be below this limit."""
BMV2_HOP_US = 150.0
"""The assumed time that a BMv2 switch adds to a round trip. An idle machine needs 44 us, a busy one more."""
HOPS = 6
"""The number of switches that a packet and its answer pass on a path over a T1: T0, T1, T0 and back."""
BYPASS_SOURCE = (
    "paper, section 2.1: a failed path is bypassed within a few tens of us, here 50; as many round trips "
    "if the round trip is longer than that of section 5.2.1, 13.1 us"
)


def fabric_of(result: Result, transport: str) -> Fabric:
    """Return the scenario's fabric, with only one plane if the transport asks for one plane."""
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
    """Return the hosts of a repetition's ranks, and the pairs of ranks that send to each other."""
    workload = dict(result["parameters"]["workload"])
    kind = workload.pop("kind")
    return place(kind, workload, fabric, int(result.get("seed", 1)) + repetition)


def nic_mbps(fabric: Fabric) -> float:
    """Return the rate of all of a NIC's links together, Mbit/s."""
    return link_bps(fabric, fabric.hosts[0].name) / 1e6


def payload_mbps(result: Result, transport: str) -> float:
    """Return the payload rate, Mbit/s, if MRC fills all links of a NIC with full packets."""
    options = transport_of(result, transport).get("options", {})
    payload_bytes = int(options.get("mtu_bytes", PAYLOAD_BYTES))
    frame_bytes = payload_bytes + FRAME_OVERHEAD_BYTES + bool(options.get("timestamps")) * TIMESTAMP_BYTES
    return nic_mbps(fabric_of(result, transport)) * payload_bytes / frame_bytes


def full_mbps(result: Result, transport: str, repetition: int = 0) -> float:
    """Return the largest possible payload rate of the workload, Mbit/s.

    This rate is limited by the senders' links, the receivers' links, and the configured rates of flows.
    """
    fabric = fabric_of(result, transport)
    placement = placement_of(result, fabric, repetition)
    share = payload_mbps(result, transport) / nic_mbps(fabric)
    asked = [flow["rate_bps"] for flow in placement.params.get("flows", ())]
    rates = sum(asked) / 1e6 if asked and all(asked) else float("inf")
    return min(most_mbps(result, transport, repetition) * share, rates)


def packets_a_second(fabric: Fabric, mbps: float) -> float:
    """Return the packets per second of a payload rate, if all packets are full."""
    return mbps * 1e6 / 8 / PAYLOAD_BYTES


def rtt_us(result: Result, transport: str) -> float:
    """Return the shorter of two RTTs, us: measured before the faults, and computed for the idle network.

    Limits are multiples of this time. Therefore, queues during the run must not make this time longer.
    """
    found = [t["rtt_us"] for t in trials_of(result, transport) if t.get("rtt_us")]
    idle_us = idle_network_rtt_us(result, transport)
    return min(float(np.median(found)), idle_us) if found else idle_us


def idle_network_rtt_us(result: Result, transport: str) -> float:
    """Return the round-trip time of the idle network, us, computed from the topology and the target."""
    fabric = fabric_of(result, transport)
    propagation_us = 2 * float(result["parameters"].get("propagation_ns", 0)) / 1e3
    target = result.get("target")
    estimate = idle_rtt_ns if target == SIMULATED else estimated_base_rtt_ns
    hops_us = BMV2_HOP_US * HOPS if target == "bmv2" else 0.0
    return estimate(fabric, fabric.hosts[0].name, PAYLOAD_BYTES) / 1e3 + propagation_us + hops_us


def bypass_limit_us(round_trip_us: float, paper_us: float = PAPER_BYPASS_US) -> float:
    """Return the time limit for bypassing a failed path, us. The limit grows with the round-trip time."""
    return paper_us * max(1.0, round_trip_us / PAPER_RTT_US)


def capacity_mbps(fabric: Fabric, src: str, dst: str, broken: Sequence[str]) -> float:
    """Return the possible rate between two NICs, Mbit/s, if the places ``broken`` have failed.

    The rate of a plane is limited by the two NICs' ports and by the working paths. A plane without a working
    path is not used. The sender gives all other planes equal shares, so each plane gets the rate of the
    slowest plane (paper, section 4).
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
        # All paths over this T1 share its links to the T0s, so these links limit the sum of the paths' rates.
        over = [path.links for path in paths if path.t1 == t1]
        cores = sum(min((rate(name) for name in links[2:-2]), default=first) for links in over)
        inner += min([cores, *(rate(name) for name in (over[0][1], over[0][-2]) if len(over[0]) > 2)])
    return min(first, last, inner)


def expected_share(fabric: Fabric, src: str, dst: str, broken: Sequence[str]) -> float:
    """Return the capacity between two NICs with ``broken`` places, divided by the fault-free capacity."""
    return capacity_mbps(fabric, src, dst, broken) / capacity_mbps(fabric, src, dst, ())


def nic_mbps_of(result: Result, transport: str) -> float:
    """Return the rate of all links of a NIC together, Mbit/s. If NICs differ, use the fastest NIC."""
    fabric = fabric_of(result, transport)
    return max(link_bps(fabric, host.name) for host in fabric.hosts) / 1e6


def most_mbps(result: Result, transport: str, repetition: int = 0) -> float:
    """Return the highest possible total rate, Mbit/s.

    It is the smaller one of two sums: the rates of all senders' links, and the rates of all receivers' links.
    Return infinity if the result does not name the kind of its workload.
    """
    if "kind" not in result["parameters"]["workload"]:
        return float("inf")
    fabric = fabric_of(result, transport)
    placement = placement_of(result, fabric, repetition)
    across = [(placement.hosts[a], placement.hosts[b]) for a, b in placement.pairs]
    ends = [{pair[end] for pair in across if pair[0] != pair[1]} for end in (0, 1)]
    return min(sum(link_bps(fabric, host) for host in hosts) for hosts in ends) / 1e6


def bus_factor(result: Result) -> float:
    """Return a rank's sent bytes in a collective, divided by its buffer's size; 0 without a collective."""
    factor = BUS_FACTOR.get(str(result["parameters"]["workload"].get("kind")))
    if factor is None:
        return 0.0
    fabric = fabric_of(result, next(iter(result["transports"])))
    return float(factor(len(placement_of(result, fabric).hosts)))
