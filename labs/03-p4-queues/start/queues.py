"""Send two bursts through your program and draw the wait of each frame: python queues.py [FILE.json]."""

import sys
from pathlib import Path

from mrclab.labs.checks import Hint
from mrclab.labs.switching.queueing import show

try:
    print(show(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
except Hint as hint:
    sys.exit(str(hint))
