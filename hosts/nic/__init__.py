"""A host's NIC: its ports and links, the device that drives a transport over them, and its addresses."""

from hosts.compiled import NIC, prefer

prefer(__path__, NIC)  # Before any module of this package is imported.
