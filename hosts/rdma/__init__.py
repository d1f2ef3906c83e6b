"""What MRC and RoCEv2 share: headers, ICRC, memory, completions, the base endpoint and its scheduler.

A state machine without I/O, clock or randomness of its own: time and the random generator are arguments.
"""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # Before any module of this package is imported.
