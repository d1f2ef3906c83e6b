"""Streams of messages of known content, which the receiver checks byte by byte."""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # Before any module of this package is imported.
