"""The sending half of a queue pair: sending, loss detection and retransmission."""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # Run before the imports of its modules, so that compiled ones are found.
