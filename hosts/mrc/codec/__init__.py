"""Packets: as typed values inside the core, and in the form that a network carries, bytes or objects."""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # Before any module of this package is imported.
