"""A process on a host that works and answers requests at the same time, and the class that controls it.

An agent is such a process. It is started in the host's namespace as ``python -m MODULE CONTROL_FD`` with one
end of a socket pair. `RemoteAgent`, in the process of the experiment, has the other end. The format of
requests and answers is described in `mrclab.linux.requests`.
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
"""The answer to a request. It is None if ``turn`` returns the answer later."""
Operation = Callable[[Request], Answer]


class Worker(Protocol):
    """The work that a process does while it waits for requests."""

    @property
    def operations(self) -> Mapping[str, Operation]:
        """The function for each request, by the request's name."""

    def turn(self, control_fd: int) -> tuple[bool, Answer]:
        """Work for a while. Return whether a request can be read, and the answer to an earlier request.

        If this method raises an exception, the exception is sent as the answer.
        """

    def close(self) -> None:
        """Clean up after the control socket was closed."""


def serve(control: socket.socket, worker: Worker) -> None:
    """Work and answer requests until the control socket is closed or a request is too long."""
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
    """Serve the control socket. Its descriptor is the only argument of the process."""
    logging.basicConfig(level=logging.WARNING)
    serve(socket.socket(fileno=int(sys.argv[1])), worker)


def freeze_heap() -> None:
    """Exclude all present objects from garbage collection. A full collection would block the NIC."""
    gc.collect()
    gc.freeze()


def resident_bytes() -> int:
    """Return the resident memory of this process, bytes."""
    return int(psutil.Process().memory_info().rss)


TIMEOUT_S = 30.0
LEAVE_S = 5.0

Spawn = Callable[..., "subprocess.Popen[Any]"]


class AgentError(MrclabError, RuntimeError):
    """An agent refused a request, or has ended."""


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
        """Return a descriptor that is readable if an answer has arrived or the agent has ended."""
        return self._socket.fileno()

    def __enter__(self) -> RemoteAgent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self, within_s: float = LEAVE_S) -> None:
        """Close the socket, which ends the agent. Kill the agent if it still runs ``within_s`` later."""
        self._lines.close()
        self._socket.close()
        try:
            self._process.wait(timeout=within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def send(self, do: str, **arguments: Any) -> None:
        """Send a request. If the agent has ended, nothing is raised here: `receive` raises the error."""
        with suppress(OSError):
            self._socket.settimeout(TIMEOUT_S)
            self._socket.sendall(encode({"do": do, **arguments}))

    def receive(self, timeout_s: float | None = TIMEOUT_S) -> dict[str, Any]:
        """Return the answer to the oldest request. If ``timeout_s`` is None, wait without limit.

        Raise AgentError if there is no answer, or if the agent refused the request.
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
        """Send a request and return its answer. Raise AgentError if the agent refuses it or has ended."""
        self.send(do, **arguments)
        return self.receive()
