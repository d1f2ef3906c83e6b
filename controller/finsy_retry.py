"""How soon finsy connects again to a switch that it lost, and how long it waits for an answer.

finsy leaves a switch alone for ten seconds when its connection fails within 2 s. Here switches die and boot
again all the time. It gives up on an answer after ten seconds; a machine with few CPUs that programs hundreds
of switches at a time needs longer. Neither has an option, so this sets finsy's private constants.
``tests/controller/test_finsy_retry.py`` fails when a release of finsy no longer reads them.
"""

from __future__ import annotations

import finsy.p4client
import finsy.switch

RETRY_S = 0.1
ANSWER_S = 60.0


def reconnect_soon() -> None:
    """Make finsy wait ``RETRY_S`` before it connects again to a switch that it just lost."""
    finsy.switch._FAIL_THROTTLE_SECS = RETRY_S


def answer_late() -> None:
    """Make finsy wait ``ANSWER_S`` for an answer. A switch that has ended is noticed at once all the same."""
    finsy.p4client._DEFAULT_RPC_TIMEOUT = ANSWER_S
