"""A link made longer without the kernel's netem: a process holds its frames back.

At each end of the link what comes in is led aside, before anyone but a packet socket for all protocols has
seen it, to ``testbed.wire_relay``, and comes back when its time is over, as if it came in just then. The
attachments and interfaces that this takes are the process's own and end with it, however it ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import IO, Any

from linux.errors import MachineError

MEND = "modprobe sch_netem, or boot Linux 6.6 or later"


@dataclass(frozen=True, slots=True)
class WireEnd:
    """An interface of a namespace, and its MTU."""

    namespace: str
    ifname: str
    mtu_bytes: int


class LongWire:
    """A link that takes longer from when this is made until ``close``.

    Raise MachineError where the kernel is older than 6.6, which the leading aside takes.
    """

    def __init__(self, ends: tuple[WireEnd, ...], delay_ns: int) -> None:
        spec = json.dumps({"delay_ns": delay_ns, "ends": [asdict(end) for end in ends]})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "testbed.wire_relay", spec],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            self.since_ns = self._begun()
            """CLOCK_MONOTONIC (ns) before it was made longer, and after."""
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """The process that holds the frames."""
        return self._process.pid

    def _pipe(self, pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe

    def _line(self) -> dict[str, Any]:
        """Return the process's next line; empty where it has ended."""
        said: dict[str, Any] = json.loads(self._pipe(self._process.stdout).readline() or "{}")
        return said

    def _begun(self) -> tuple[int, int]:
        said = self._line() or {"problem": "the process that makes a link longer ended"}
        if "problem" in said:
            raise MachineError(said["problem"], MEND)
        return said["before_ns"], said["after_ns"]

    def close(self) -> tuple[int, int]:
        """Make it as long as it was; frames held are lost. Return CLOCK_MONOTONIC (ns) before and after.

        Where another program ended the process, this happened at an unknown moment after it began.
        """
        self._pipe(self._process.stdin).close()
        try:
            said = self._line()
            return said.get("before_ns", self.since_ns[1]), said.get("after_ns", time.monotonic_ns())
        finally:
            self.kill()

    def kill(self) -> None:
        """End the process at once; the kernel removes what it made a moment later."""
        self._process.kill()
        self._process.wait()
        self._pipe(self._process.stdout).close()
        self._pipe(self._process.stdin).close()
