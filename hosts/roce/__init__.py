"""A RoCEv2 reliable connection as NICs implement it: the baseline that MRC is compared with.

One path per queue pair, packets in order or not at all, go-back-N, DCQCN. Sans-IO like `mrclab.hosts.mrc`,
with the same verbs (see `mrclab.hosts.endpoint`), so that the same driver runs both. Start reading at
`endpoint.Endpoint`, then `requester`, `responder`, and `notification` and `reaction` for DCQCN.

Sources: [IBTA] is the InfiniBand Architecture Specification volume 1, release 1.3, with annex A17 (RoCEv2);
[DCQCN] is Zhu et al., Congestion Control for Large-Scale RDMA Deployments, SIGCOMM 2015.
"""

from mrclab.hosts.roce.config import DcqcnConfig, RoceConfig
from mrclab.hosts.roce.endpoint import Endpoint, RoceAttributes, RoceCounters

__all__ = ["DcqcnConfig", "Endpoint", "RoceAttributes", "RoceConfig", "RoceCounters"]
