"""`python -m mrclab.hosts.compile`: compile the transports' cores (see `mrclab.hosts.compiled`) if needed."""

import sys

from mrclab.hosts.compiled import main

if __name__ == "__main__":
    sys.exit(main())
