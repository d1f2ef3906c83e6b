"""The common parts of MRC and RoCEv2: headers, ICRC, memory, completions, the base endpoint, its scheduler.

The code is a state machine without I/O, clock or randomness: time and the random generator are arguments.
"""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # Call this before importing from the package, so Python finds compiled modules.
