"""The other end of an agent's control socket: starts a process in a host's namespace and commands it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

TIMEOUT_S = 30.0
LEAVE_S = 5.0

Spawn = Callable[..., "subprocess.Popen[Any]"]


class AgentError(RuntimeError):
    """An agent refused a command, or ended."""


class RemoteAgent:
    """An agent process in a host's namespace. A context manager: leaving it ends the agent.

    ``spawn(argv, **popen_options)`` starts a process in the host's namespace; ``module`` is what it runs:
    ``hosts.agent``, or another that serves a control socket as ``hosts.commands`` does.
    """

    def __init__(self, host: str, spawn: Spawn, stderr: Any = None, module: str = "hosts.agent") -> None:
        self.host = host
        ours, theirs = socket.socketpair()
        argv: Sequence[str] = [sys.executable, "-m", module, str(theirs.fileno())]
        with theirs:
            self._process = spawn(argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stderr=stderr)
        self._socket = ours
        self._lines = ours.makefile("rb")

    @property
    def pid(self) -> int:
        """The agent's process id."""
        return self._process.pid

    def fileno(self) -> int:
        """A descriptor that is readable when an answer is here, or the agent is gone."""
        return self._socket.fileno()

    def __enter__(self) -> RemoteAgent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self, within_s: float = LEAVE_S) -> None:
        """Ends the process: it leaves when its socket closes, or is killed if it does not in time."""
        self._lines.close()
        self._socket.close()
        try:
            self._process.wait(timeout=within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def send(self, do: str, **arguments: Any) -> None:
        """Gives a command; ``receive`` returns its answer, also where the agent is gone."""
        with suppress(OSError):
            self._socket.settimeout(TIMEOUT_S)
            self._socket.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")

    def receive(self, timeout_s: float | None = TIMEOUT_S) -> dict[str, Any]:
        """Waits for the answer to the oldest command, without end where ``timeout_s`` is None.

        Raises AgentError where there is none, or a refusal.
        """
        self._socket.settimeout(timeout_s)
        try:
            line = self._lines.readline()
        except ConnectionError:
            line = b""
        except OSError as error:
            raise AgentError(f"the agent on {self.host} does not answer: {error}") from None
        if not line:
            raise AgentError(f"the agent on {self.host} ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise AgentError(f"the agent on {self.host}: {answer['error']}")
        return answer

    def call(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Gives a command and returns the answer. Raises AgentError where the agent cannot, or is gone."""
        self.send(do, **arguments)
        return self.receive()
