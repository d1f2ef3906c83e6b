"""The sending half of a queue pair: sending, loss detection and retransmission."""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # Must run before imports of the package's modules: finds compiled modules.
