"""How soon finsy connects again to a switch that it lost: its one constant that we set from outside.

finsy leaves a switch alone for ten seconds when its connection fails within 2 s. Here switches die and boot
again all the time, and the wait has no option of its own; so this sets finsy's private constant.
``tests/controller/test_finsy_retry.py`` fails when a release of finsy no longer reads it.
"""

from __future__ import annotations

import finsy.switch

RETRY_S = 0.1


def reconnect_soon() -> None:
    """Make finsy wait ``RETRY_S`` before it connects again to a switch that it just lost."""
    finsy.switch._FAIL_THROTTLE_SECS = RETRY_S
