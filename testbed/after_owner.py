"""Remove the leftovers of a testbed whose owner was killed.

The watchdog of a testbed starts ``python -m mrclab.testbed.after_owner PREFIX STATE_DIR RUN_ID``. A newer
testbed with the same names is not removed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mrclab.testbed import state
from mrclab.testbed.clean import Removed, remove
from mrclab.testbed.names import Names


def remove_dead(names: Names, run_id: str) -> Removed:
    """Remove the testbed of a run, if the testbed still exists and its owner has ended."""
    if not names.state_dir.exists():
        return Removed()
    with state.locked(names):
        found = state.read(names)
        if found is None:
            # The owner took the testbed down, but did not stop its watchdog. Only the lock file is left.
            state.forget(names)
            return Removed()
        if found.run_id != run_id or found.owner is None or found.owner.alive:
            return Removed()
        return remove(names)


if __name__ == "__main__":
    remove_dead(Names(sys.argv[1], Path(sys.argv[2])), sys.argv[3])
