"""Entropy values (EVs): their states, the set that a queue pair sprays over, and their sources."""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # Run before the imports of its modules, so that compiled ones are found.
