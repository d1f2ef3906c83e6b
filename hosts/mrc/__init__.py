"""The MRC protocol core: a state machine without its own I/O, clock or randomness.

Start reading at `endpoint.Endpoint`, then `queue_pair`, `sending.requester`, `sending.recovery`, `responder`
and `evs.ev_set`. `mrclab.hosts.rdma` has the parts that RoCEv2 shares with it.
"""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # Run before the imports of its modules, so that compiled ones are found.

from mrclab.hosts.mrc.config import DscpMap, MrcConfig, SpecReading
from mrclab.hosts.mrc.connection import QpAttributes
from mrclab.hosts.mrc.endpoint import Endpoint
from mrclab.hosts.mrc.queue_pair import PlaneCounters, QpCounters

__all__ = ["DscpMap", "Endpoint", "MrcConfig", "PlaneCounters", "QpAttributes", "QpCounters", "SpecReading"]
