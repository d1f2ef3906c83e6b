"""Send a packet through your program and print the result: python packets.py [FILE.json]."""

import sys
from pathlib import Path

from mrclab.labs.checks import Hint
from mrclab.labs.switching.forwarding import show

try:
    print(show(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
except Hint as hint:
    sys.exit(str(hint))
