"""The sending half of a queue pair: sending, loss detection and retransmission."""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # Call this before importing from the package, so Python finds compiled modules.
