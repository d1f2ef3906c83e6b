"""Compiled programs, shared by the switches of a process."""

from __future__ import annotations

import asyncio
import hashlib

from linux.errors import SwitchError
from switches.ebpf.codegen.compile import compile_json
from switches.ebpf.plan.compiled import Compiled


class Programs:
    """Compiled programs by the digest of their JSON: a fabric compiles its program once."""

    def __init__(self) -> None:
        self._known: dict[bytes, asyncio.Future[Compiled]] = {}

    async def get(self, data: bytes) -> Compiled:
        """Return the compiled program; concurrent callers share one compilation. Raises SwitchError."""
        digest = hashlib.sha256(data).digest()
        if digest not in self._known:
            self._known[digest] = asyncio.ensure_future(asyncio.to_thread(compile_json, data))
        task = self._known[digest]
        try:
            return await asyncio.shield(task)
        except SwitchError:
            self._known.pop(digest, None)
            raise
