"""`python -m mrclab.hosts.compile`: compile the modules that `mrclab.hosts.compiled` lists, unless that is done."""

import sys

from mrclab.hosts.compiled import main

if __name__ == "__main__":
    sys.exit(main())
