"""The MRC protocol core: a state machine without I/O, clock or randomness of its own.

Start reading at `endpoint.Endpoint`, then `requester`, `responder`, `ev` and `loss`. `hosts.rdma` has what
RoCEv2 shares with it.
"""

from hosts.compiled import prefer

prefer(__path__, __name__)  # Before any module of this package is imported.

from hosts.mrc.config import DscpMap, MrcConfig
from hosts.mrc.connection import QpAttributes
from hosts.mrc.endpoint import Endpoint, PlaneCounters, QpCounters

__all__ = ["DscpMap", "Endpoint", "MrcConfig", "PlaneCounters", "QpAttributes", "QpCounters"]
