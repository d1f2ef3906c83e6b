"""Streams of messages with known content. The receiver checks every byte."""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # Before any import from this package: Python then finds its compiled modules.
