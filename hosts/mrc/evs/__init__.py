"""Entropy values (EVs): their states, the set that a queue pair sprays over, and their sources."""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # Call this before importing from the package, so Python finds compiled modules.
