"""A discrete-event network under the same endpoints that run on real sockets.

The endpoints of `mrclab.hosts.mrc` and `mrclab.hosts.roce` take time as an argument. Here that time is
virtual: links, queues and switches are events of a clock that counts picoseconds, so rates of 800 Gbit/s and
round trips of 5 us need no root, no kernel and no fast machine. docs/simulator.md lists the modelled parts.
"""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # Before any module of this package is imported.
