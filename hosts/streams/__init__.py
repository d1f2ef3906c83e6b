"""Streams of messages with known content. The receiver checks every byte."""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # Call this before importing from the package, so Python finds compiled modules.
