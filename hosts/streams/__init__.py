"""Streams of messages of known content, which the receiver checks byte by byte."""

from hosts.compiled import STREAMS, prefer

prefer(__path__, STREAMS)  # Before any module of this package is imported.
