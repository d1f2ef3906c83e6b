"""A host's NIC: its ports and links, the device that drives a transport over them, and its addresses."""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # Before any module of this package is imported.
