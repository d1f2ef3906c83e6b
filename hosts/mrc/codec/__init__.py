"""Packets: as typed values inside the core, and in the form that a network carries, bytes or objects."""
