"""Of the sending half: the queue of writes, and the packets in flight, acknowledged and lost."""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # Before any module of this package is imported.
