"""Delay the frames of links by a separate process, for kernels without netem.

At each end of a link, arriving frames are redirected to the process ``mrclab.testbed.delays.wire_relay``. It
puts each frame back after the delay, as if the frame arrived only then. But a packet socket sees a frame
before the redirection. So if a switch reads its ports by packet sockets, frames are redirected at egress
instead, before the port's queue. The BPF programs and interfaces disappear when the process ends, even after
a crash. ``lengthen`` delays all links of a topology with one process.
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
    """An end of a link: an interface in a namespace, its MTU, and the delay for its frames."""

    namespace: str
    ifname: str
    mtu_bytes: int
    delay_ns: int


class LongWires:
    """Links whose frames are delayed from ``begin`` until ``close``.

    The constructor starts the delaying process, but does not wait for it. If ``egress`` is true, frames are
    delayed at an end's egress, otherwise at its ingress. The process gets ``variables`` in its environment.
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
        """CLOCK_MONOTONIC (ns) just before and just after the delay began."""
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
        """The id of the process that delays the frames."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Return True if the process has ended, so that the links have no added delay."""
        return self._process.poll() is not None

    def wait_ready(self) -> None:
        """Wait until the process is ready for ``begin``.

        Raise MachineError if the kernel is older than 6.6, because it then lacks the needed BPF links.
        """
        if not self._ready:
            self._answer()
            self._ready = True

    def begin(self) -> tuple[int, int]:
        """Begin the delay. Return CLOCK_MONOTONIC (ns) before and after its start.

        Raise the errors of ``wait_ready``.
        """
        self.wait_ready()
        self._send("begin")
        said = self._answer()
        self.since_ns = said["before_ns"], said["after_ns"]
        return self.since_ns

    def close(self) -> tuple[int, int]:
        """End the delay. Delayed frames are lost. Return CLOCK_MONOTONIC (ns) before and after the end.

        The process and its interfaces end a moment later. If another program or `kill` ended the process, the
        true time is unknown, and the result is the whole interval since the delay began.
        """
        if self._pipe(self._process.stdout).closed:
            return self.since_ns  # `kill` has closed the pipe
        self._pipe(self._process.stdin).close()
        said = self._line()
        self._pipe(self._process.stdout).close()
        threading.Thread(target=self._process.wait, name="wire-relay", daemon=True).start()
        return said.get("before_ns", self.since_ns[1]), said.get("after_ns", time.monotonic_ns())

    def kill(self) -> None:
        """End the process immediately. The kernel removes its interfaces a moment later."""
        self._process.kill()
        self._process.wait()
        self._pipe(self._process.stdout).close()
        self._pipe(self._process.stdin).close()

    def _pipe(self, pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe

    def _send(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # the process has ended: `_answer` reports why
            os.write(self._pipe(self._process.stdin).fileno(), line.encode() + b"\n")

    def _line(self) -> dict[str, Any]:
        """Return the process's next message, or an empty dict if the process has ended."""
        said: dict[str, Any] = json.loads(self._pipe(self._process.stdout).readline() or "{}")
        return said

    def _answer(self) -> dict[str, Any]:
        said = self._line() or {"problem": "the process that makes a link longer ended"}
        if "problem" in said:
            self.kill()
            raise MachineError(said["problem"], MEND)
        return said


def wire_ends(cable: Cable, delay_ns: int) -> tuple[WireEnd, ...]:
    """Return both ends of a cable, each with the delay to add."""
    mtu_bytes = cable.link.profile.mtu_bytes
    return tuple(WireEnd(end.namespace, end.ifname, mtu_bytes, delay_ns) for end in (cable.a, cable.b))


def lengthen(fabric: Fabric, names: Names, run_id: str, *, routers: bool, egress: bool) -> LongWires | None:
    """Give the links of a running fabric the delays of its topology; return an object to close at the end.

    Return None if no link has a delay, or if the kernel's netem makes the delays. Frames are delayed at
    ingress, or at egress if ``egress`` is true. Raise MachineError if the kernel cannot delay frames at all.
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
