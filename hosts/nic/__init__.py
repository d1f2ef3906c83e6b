"""A host's NIC: its ports and links, the device that runs a transport over them, and its addresses."""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # Call this before importing from the package, so Python finds compiled modules.
