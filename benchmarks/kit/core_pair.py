"""Two endpoints of the MRC core in one process, connected with each other over all planes."""

from __future__ import annotations

import random

from mrclab.hosts.mrc import Endpoint, MrcConfig
from mrclab.hosts.rdma.paths import Path, PlanePaths, PortAddress, RemotePaths


def ports(node: int, planes: int) -> list[PortAddress]:
    """Return the ports of a node (0 or 1), one per plane."""
    return [
        PortAddress(p, bytes([2, 0, 0, 0, node, p]), bytes([0xFD, p, node]) + bytes(13))
        for p in range(planes)
    ]


def routes(me: int, planes: int, paths: int) -> RemotePaths:
    """Return the paths from one node to the other, the same number in each plane."""
    return RemotePaths(
        tuple(
            PlanePaths(
                p,
                near.mac,
                far.mac,
                near.address,
                far.address,
                tuple(Path(p << 16 | k, bytes(8) + bytes([p, k]) + bytes(6)) for k in range(paths)),
            )
            for p, (near, far) in enumerate(zip(ports(me, planes), ports(1 - me, planes), strict=True))
        )
    )


def connected(
    config: MrcConfig, planes: int, paths: int, queue_pairs: int = 1
) -> tuple[list[Endpoint], list[int]]:
    """Return both endpoints, and the numbers of the first endpoint's queue pairs."""
    ends = [Endpoint(ports(n, planes), config, random.Random(n)) for n in (0, 1)]
    numbers = []
    for _ in range(queue_pairs):
        pair = [end.create_qp() for end in ends]
        for me, end in enumerate(ends):
            theirs = ends[1 - me].local_attributes(pair[1 - me])
            end.connect(pair[me], theirs, routes(me, planes, paths))
        numbers.append(pair[0])
    return ends, numbers
