"""Garbage collection in a NIC service, which frees destroyed queue pairs (cycles of objects)."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import gc
from collections import deque
from mrclab.hosts.service import __main__ as service

service.begin_collecting()
full = []
gc.callbacks.append(lambda phase, info: full.append(phase) if info["generation"] == 2 else None)
kept = deque(maxlen=100)
for _ in range(300_000):
    kept.append([])
    kept[-1].append(kept[-1])
print(len(full))
"""


def test_what_was_frozen_does_not_delay_the_collection_of_what_came_later() -> None:
    """The collector runs when the number of objects, frozen or not, has grown by a quarter."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0
