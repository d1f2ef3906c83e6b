"""A discrete-event network for the same endpoints that run on real sockets.

The endpoints of `mrclab.hosts.mrc` and `mrclab.hosts.roce` take time as an argument. Here time is virtual: a
clock that counts picoseconds runs the events in links, queues and switches. So links of 800 Gbit/s and round
trips of 5 us need no root rights and no fast machine. docs/simulator.md lists the modelled parts.
"""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # must run before any module of this package is imported
