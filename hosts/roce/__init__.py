"""A RoCEv2 reliable connection as NICs implement it: the baseline that MRC is compared with.

Each queue pair has one path and accepts packets only in order. It uses go-back-N and DCQCN. This code does no
I/O and has the same verbs as `mrclab.hosts.mrc` (see `mrclab.hosts.endpoint`), so one driver runs both
transports. Start reading at `endpoint.Endpoint`, then `requester`, `responder`, and `dcqcn`.

Sources: [IBTA] is the InfiniBand Architecture Specification volume 1, release 1.3, with annex A17 (RoCEv2);
[DCQCN] is Zhu et al., Congestion Control for Large-Scale RDMA Deployments, SIGCOMM 2015.
"""

from mrclab.hosts.roce.config import DcqcnConfig, RoceConfig
from mrclab.hosts.roce.endpoint import Endpoint, RoceAttributes, RoceCounters

__all__ = ["DcqcnConfig", "Endpoint", "RoceAttributes", "RoceConfig", "RoceCounters"]
