"""Streams of messages with known content. The receiver checks every byte."""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # Run before the imports of its modules, so that compiled ones are found.
