"""The sending half of a queue pair: what is posted, in flight, acknowledged, lost and sent again."""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # Before any module of this package is imported.
