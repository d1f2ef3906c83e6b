"""`python -m hosts.compile`: compile the modules that `hosts.compiled` lists, unless that is done."""

import sys

from hosts.compiled import main

if __name__ == "__main__":
    sys.exit(main())
