"""A host's NIC: its ports and links, the device that runs a transport over them, and its addresses."""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # Run before the imports of its modules, so that compiled ones are found.
