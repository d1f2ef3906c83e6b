"""A link made longer without the kernel's netem: a process of ours holds its frames.

At each end of the link what comes in is led aside, before anyone but a packet socket for all protocols has
seen it, to ``testbed.wire_relay``, and comes back when its time is over, as if it came in just then. The
attachments and interfaces that this takes are the process's own and end with it, however it ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import IO, Any

from testbed.errors import MachineError

MEND = "modprobe sch_netem, or boot Linux 6.6 or later"


@dataclass(frozen=True, slots=True)
class WireEnd:
    """An interface of a namespace, and its MTU."""

    namespace: str
    ifname: str
    mtu_bytes: int


class LongWire:
    """A link that takes longer from when this is made until ``close``.

    Raises MachineError where the kernel is older than 6.6, which the leading aside takes.
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
            self.since_ns = self._heard()
            """CLOCK_MONOTONIC (ns) before it was made longer, and after."""
        except BaseException:
            self.kill()
            raise

    def _pipe(self, pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe

    def _heard(self) -> tuple[int, int]:
        line = self._pipe(self._process.stdout).readline()
        said: dict[str, Any] = json.loads(line or '{"problem": "the process that makes a link longer ended"}')
        if "problem" in said:
            raise MachineError(said["problem"], MEND)
        return said["before_ns"], said["after_ns"]

    def close(self) -> tuple[int, int]:
        """Makes it as long as it was; what it holds is lost. CLOCK_MONOTONIC (ns) before that and after."""
        self._pipe(self._process.stdin).close()
        try:
            return self._heard()
        finally:
            self.kill()

    def kill(self) -> None:
        """Ends the process at once; what was its own goes a moment later."""
        self._process.kill()
        self._process.wait()
        self._pipe(self._process.stdout).close()
        self._pipe(self._process.stdin).close()
