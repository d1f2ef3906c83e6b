"""The MRC protocol core: a state machine without I/O, clock or randomness of its own.

Start reading at `endpoint.Endpoint`, then `requester`, `responder`, `ev` and `loss`.
"""

from hosts.compiled import CORE, prefer

prefer(__path__, CORE)  # Before any module of this package is imported.

from hosts.mrc.config import DscpMap, MrcConfig
from hosts.mrc.endpoint import Drops, Endpoint, EvCounters, PlaneCounters, QpCounters
from hosts.mrc.ev import EvState
from hosts.mrc.memory import Access, MemoryRegion
from hosts.mrc.paths import Path, PlanePaths, PortAddress, QpAttributes, RemotePaths
from hosts.mrc.reports import Completion

__all__ = [
    "Access",
    "Completion",
    "Drops",
    "DscpMap",
    "Endpoint",
    "EvCounters",
    "EvState",
    "MemoryRegion",
    "MrcConfig",
    "Path",
    "PlaneCounters",
    "PlanePaths",
    "PortAddress",
    "QpAttributes",
    "QpCounters",
    "RemotePaths",
]
