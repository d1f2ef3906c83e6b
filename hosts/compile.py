"""`python -m mrclab.hosts.compile`: compile the MRC core (`mrclab.hosts.compiled`) unless that is done."""

import sys

from mrclab.hosts.compiled import main

if __name__ == "__main__":
    sys.exit(main())
