"""The streams of a mesh: both directions of all queue pairs between some hosts. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from mrclab.experiments.spec.workloads import Mesh
from mrclab.hosts.streams.stream import MIN_SLOTS, REGION_BYTES, StreamPlan
from mrclab.linux.errors import InputError

MIN_STREAM_BPS = 10_000


@dataclass(frozen=True, slots=True)
class MeshStream:
    """One direction of one queue pair: ``src`` writes to ``dst``. ``qps`` are its numbers at both ends."""

    src: str
    dst: str
    qps: tuple[int, int]
    plan: StreamPlan

    @property
    def name(self) -> str:
        """Return such as ``h0>h4 qp 2``."""
        return f"{self.src}>{self.dst} qp {self.qps[0]}"


def mesh_streams(mesh: Mesh, hosts: Sequence[str], seed: int) -> list[MeshStream]:
    """Return both directions of all queue pairs. A host numbers its queue pairs in this order.

    The streams that a host receives share the memory that one stream may have. Raise InputError if the rate
    is too low for so many streams, or the messages are too long.
    """
    count = len(hosts) * (len(hosts) - 1) * mesh.qps
    rate = mesh.rate_bps // count
    if rate < MIN_STREAM_BPS:
        raise InputError(f"workload.rate: {mesh.rate_bps} bit/s are too few for {count} streams")
    region_bytes = REGION_BYTES // ((len(hosts) - 1) * mesh.qps)
    longest = region_bytes // MIN_SLOTS
    if mesh.message_bytes > longest:
        raise InputError(
            f"workload.message_bytes: with so many streams, messages have at most {longest} bytes"
        )
    used = dict.fromkeys(hosts, 0)
    seeds = random.Random(seed)
    found = []
    for a, b in combinations(hosts, 2):
        for _ in range(mesh.qps):
            for src, dst in ((a, b), (b, a)):
                plan = StreamPlan(
                    mesh.message_bytes, rate, seeds.getrandbits(62), mixed=True, region_bytes=region_bytes
                )
                found.append(MeshStream(src, dst, (used[src], used[dst]), plan))
            used[a] += 1
            used[b] += 1
    return found
