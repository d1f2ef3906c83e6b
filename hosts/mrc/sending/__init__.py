"""The sending half of a queue pair: writes posted, and packets in flight, acknowledged, lost, resent."""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # Before any module of this package is imported.
