"""The MRC protocol core: a state machine without its own I/O, clock or randomness.

Start reading at `endpoint.Endpoint`, then `queue_pair`, `sending.requester`, `sending.recovery`, `responder`
and `evs.ev_set`. `mrclab.hosts.rdma` has the parts that MRC shares with RoCEv2.
"""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # Call this before importing from the package, so Python finds compiled modules.

from mrclab.hosts.mrc.config import DscpMap, MrcConfig, SpecReading
from mrclab.hosts.mrc.connection import QpAttributes
from mrclab.hosts.mrc.endpoint import Endpoint
from mrclab.hosts.mrc.queue_pair import PlaneCounters, QpCounters

__all__ = ["DscpMap", "Endpoint", "MrcConfig", "PlaneCounters", "QpAttributes", "QpCounters", "SpecReading"]
