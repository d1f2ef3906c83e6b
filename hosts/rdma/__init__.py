"""Shared by MRC and RoCEv2: headers, ICRC, memory, completions, the base endpoint and its scheduler.

A state machine without its own I/O, clock or randomness: time and the random generator are arguments.
"""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # Before any module of this package is imported.
