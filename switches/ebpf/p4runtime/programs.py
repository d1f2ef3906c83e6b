"""Compiled programs, shared by the switches of a process."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection

from mrclab.linux.errors import SwitchError
from mrclab.switches.ebpf.codegen.compile import compile_json
from mrclab.switches.ebpf.plan.compiled import Compiled

SPARE = 2
"""Programs that no switch has loaded and that are kept in case one is set again."""


class Programs:
    """Compiled programs by the digest of their JSON: a fabric compiles its program once."""

    def __init__(self) -> None:
        self._known: dict[bytes, asyncio.Future[Compiled]] = {}  # the least recently asked for first

    async def get(self, data: bytes) -> Compiled:
        """Return the compiled program; concurrent callers share one compilation. Raise SwitchError."""
        digest = hashlib.sha256(data).digest()
        if digest not in self._known:
            self._known[digest] = asyncio.ensure_future(asyncio.to_thread(compile_json, data))
        task = self._known[digest] = self._known.pop(digest)
        try:
            return await asyncio.shield(task)
        except SwitchError:
            self._known.pop(digest, None)
            raise

    def release(self, used: Collection[Compiled]) -> list[Compiled]:
        """Drop the programs that no switch has loaded, except the last ``SPARE``; return the dropped ones."""
        done = {digest: task for digest, task in self._known.items() if task.done() and not task.exception()}
        idle = [digest for digest, task in done.items() if not any(task.result() is c for c in used)]
        return [self._known.pop(digest).result() for digest in idle[:-SPARE]]
