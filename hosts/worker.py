"""A process on a host that works and takes requests at the same time: main loop and remote end.

Such a process, an agent for instance, is started in the host's namespace as ``python -m MODULE CONTROL_FD``
with one end of a socket pair; `RemoteAgent`, in the experiment, has the other end. The form of requests and
answers is that of `mrclab.linux.requests`.
"""

from __future__ import annotations

import gc
import json
import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol

import psutil

from mrclab.linux.errors import MrclabError
from mrclab.linux.processes import ending
from mrclab.linux.requests import (
    ANSWER_BYTES,
    REQUEST_BYTES,
    Request,
    TooLongError,
    carry_out,
    encode,
    read_line,
    refusal,
)

LOGGER = logging.getLogger(__name__)

Answer = dict[str, Any] | None
"""None if the answer to a request comes later, from ``turn``."""
Operation = Callable[[Request], Answer]


class Worker(Protocol):
    """The work of a process while it waits for requests."""

    @property
    def operations(self) -> Mapping[str, Operation]:
        """The requests that it takes, by name."""

    def turn(self, control_fd: int) -> tuple[bool, Answer]:
        """Work for a while; return if a request is here to be read, and an answer that is due.

        An exception is reported as that answer.
        """

    def close(self) -> None:
        """Clean up after the control socket was closed."""


def serve(control: socket.socket, worker: Worker) -> None:
    """Work and answer requests until the other end closes the control socket or sends too long a request."""
    with control, control.makefile("rb", buffering=0) as requests:
        while True:
            try:
                requested, answer = worker.turn(control.fileno())
            except Exception as error:
                LOGGER.exception("the work failed")
                requested, answer = False, refusal(error)
            _reply(control, answer)
            if not requested:
                continue
            try:
                line = read_line(requests, REQUEST_BYTES)
            except TooLongError as error:
                _reply(control, refusal(error))
                line = b""
            if not line:
                worker.close()
                return
            _reply(control, carry_out(line, worker.operations))


def _reply(control: socket.socket, answer: Answer) -> None:
    if answer is not None:
        control.sendall(encode(answer))


def run(worker: Worker) -> None:
    """Serve the control socket whose descriptor is the process's only argument."""
    logging.basicConfig(level=logging.WARNING)
    serve(socket.socket(fileno=int(sys.argv[1])), worker)


def freeze_heap() -> None:
    """Exempt all present objects from garbage collection: a full one in mid-run would stall the NIC."""
    gc.collect()
    gc.freeze()


def resident_bytes() -> int:
    """Return the memory that this process holds."""
    return int(psutil.Process().memory_info().rss)


TIMEOUT_S = 30.0
LEAVE_S = 5.0

Spawn = Callable[..., "subprocess.Popen[Any]"]


class AgentError(MrclabError, RuntimeError):
    """An agent refused a request, or ended."""


class RemoteAgent:
    """An agent process in a host's namespace. As a context manager it ends the agent on exit.

    ``spawn(argv, **popen_options)`` starts a process in the host's namespace. ``module`` is the module that
    the process runs: ``mrclab.hosts.agent``, or another module built on `mrclab.hosts.worker`.
    """

    def __init__(
        self, host: str, spawn: Spawn, stderr: Any = None, module: str = "mrclab.hosts.agent"
    ) -> None:
        self.host = host
        ours, theirs = socket.socketpair()
        argv: Sequence[str] = [sys.executable, "-m", module, str(theirs.fileno())]
        with theirs:
            self._process = spawn(argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stderr=stderr)
        self._socket = ours
        self._lines = ours.makefile("rb")

    @property
    def pid(self) -> int:
        """The agent's process ID."""
        return self._process.pid

    def fileno(self) -> int:
        """Return a descriptor that is readable when an answer is here or the agent is gone."""
        return self._socket.fileno()

    def __enter__(self) -> RemoteAgent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self, within_s: float = LEAVE_S) -> None:
        """Close the socket, which ends the agent. Kill it if it is not gone ``within_s`` seconds later."""
        self._lines.close()
        self._socket.close()
        try:
            self._process.wait(timeout=within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def send(self, do: str, **arguments: Any) -> None:
        """Send a request. `receive` returns its answer, and reports an agent that is gone."""
        with suppress(OSError):
            self._socket.settimeout(TIMEOUT_S)
            self._socket.sendall(encode({"do": do, **arguments}))

    def receive(self, timeout_s: float | None = TIMEOUT_S) -> dict[str, Any]:
        """Return the answer to the oldest request. ``timeout_s`` None waits without limit.

        Raise AgentError if there is no answer, or a refusal.
        """
        self._socket.settimeout(timeout_s)
        try:
            line = read_line(self._lines, ANSWER_BYTES)
        except ConnectionError:
            line = b""
        except (OSError, TooLongError) as error:
            raise AgentError(f"the agent on {self.host} does not answer: {error}") from None
        if not line:
            raise AgentError(f"the agent on {self.host} (process {self.pid}) {ending(self._process.wait())}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise AgentError(f"the agent on {self.host}: {answer['error']}")
        return answer

    def call(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send a request and return its answer. Raise AgentError if the agent refuses, or is gone."""
        self.send(do, **arguments)
        return self.receive()
