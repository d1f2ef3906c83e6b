"""Links made longer without the kernel's netem: a process holds their frames back.

At each end of a link incoming frames are diverted, before anyone but a packet socket for all protocols has
seen it, to ``mrclab.testbed.delays.wire_relay``, and come back when their time is over, as if they came in
just then. If a switch reads its ports by such sockets, frames are diverted at egress, before the port's
queue. The attachments and interfaces that this takes are the process's own and end with it, however it ends.
``lengthen`` gives all links of a topology their delays, by one process.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import IO, Any

from mrclab.linux.errors import MachineError
from mrclab.linux.processes import environment, python
from mrclab.testbed import links
from mrclab.testbed.links import Cable
from mrclab.testbed.names import RUN_VARIABLE, Names
from mrclab.topologies import Fabric

MEND = "modprobe sch_netem, or boot Linux 6.6 or later"


@dataclass(frozen=True, slots=True)
class WireEnd:
    """An end of a link: an interface of a namespace, its MTU, and the delay of what passes it."""

    namespace: str
    ifname: str
    mtu_bytes: int
    delay_ns: int


class LongWires:
    """Links that take longer from ``begin`` until ``close``. The process starts at once, without waiting.

    With ``egress`` frames are held back at an end's egress, else at its ingress. ``variables`` are
    added to the process's environment.
    """

    def __init__(
        self,
        ends: Iterable[WireEnd],
        *,
        egress: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._ready = False
        self.since_ns = (0, 0)
        """CLOCK_MONOTONIC (ns) before the links were made longer, and after."""
        self._process = subprocess.Popen(
            python("mrclab.testbed.delays.wire_relay"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**environment(), **(variables or {})},
        )
        try:
            self._send(json.dumps({"egress": egress, "ends": [asdict(end) for end in ends]}))
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """The process that holds the frames."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Return True if the process has ended: the links are as short as the kernel makes them."""
        return self._process.poll() is not None

    def wait_ready(self) -> None:
        """Wait until the process can begin at once.

        Raise MachineError if the kernel is older than 6.6, which the diversion needs.
        """
        if not self._ready:
            self._answer()
            self._ready = True

    def begin(self) -> tuple[int, int]:
        """Make the links longer; return CLOCK_MONOTONIC (ns) before and after. Raise as ``wait_ready``."""
        self.wait_ready()
        self._send("begin")
        said = self._answer()
        self.since_ns = said["before_ns"], said["after_ns"]
        return self.since_ns

    def close(self) -> tuple[int, int]:
        """Make them as long as they were; frames held are lost. Return CLOCK_MONOTONIC (ns) before and after.

        The process ends by itself a moment later, and its interfaces with it. If another program ended it,
        this happened at an unknown moment after it began.
        """
        if self._pipe(self._process.stdout).closed:
            return self.since_ns  # it was killed
        self._pipe(self._process.stdin).close()
        said = self._line()
        self._pipe(self._process.stdout).close()
        threading.Thread(target=self._process.wait, name="wire-relay", daemon=True).start()
        return said.get("before_ns", self.since_ns[1]), said.get("after_ns", time.monotonic_ns())

    def kill(self) -> None:
        """End the process at once; the kernel removes its interfaces a moment later."""
        self._process.kill()
        self._process.wait()
        self._pipe(self._process.stdout).close()
        self._pipe(self._process.stdin).close()

    def _pipe(self, pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe

    def _send(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended: its answer, or the lack of one, says why
            os.write(self._pipe(self._process.stdin).fileno(), line.encode() + b"\n")

    def _line(self) -> dict[str, Any]:
        """Return the process's next line; empty if it has ended."""
        said: dict[str, Any] = json.loads(self._pipe(self._process.stdout).readline() or "{}")
        return said

    def _answer(self) -> dict[str, Any]:
        said = self._line() or {"problem": "the process that makes a link longer ended"}
        if "problem" in said:
            self.kill()
            raise MachineError(said["problem"], MEND)
        return said


def wire_ends(cable: Cable, delay_ns: int) -> tuple[WireEnd, ...]:
    """Return the ends of a cable that takes longer, each way, by a delay."""
    mtu_bytes = cable.link.profile.mtu_bytes
    return tuple(WireEnd(end.namespace, end.ifname, mtu_bytes, delay_ns) for end in (cable.a, cable.b))


def lengthen(fabric: Fabric, names: Names, run_id: str, *, routers: bool, egress: bool) -> LongWires | None:
    """Make the links of a fabric that is laid as long as its topology says; return what to close at the end.

    Return None if there is nothing to do: no link has a delay, or the kernel keeps it. Frames are held
    back at ingress or, with ``egress``, at egress. Raise MachineError if the kernel can do neither.
    """
    long = [cable for cable in links.cables(fabric, names, routers=routers) if cable.link.profile.delay_ns]
    if not long or links.has_netem():
        return None
    ends = [end for cable in long for end in wire_ends(cable, cable.link.profile.delay_ns)]
    wires = LongWires(ends, egress=egress, variables={RUN_VARIABLE: run_id})
    try:
        wires.begin()
    except BaseException:
        wires.kill()
        raise
    return wires
