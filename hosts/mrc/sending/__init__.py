"""The sending half of a queue pair: what it sends next, what is lost, what it sends again."""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # Before any module of this package is imported.
