"""The other end of an agent's control socket: starts an agent and commands it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

TIMEOUT_S = 30.0

Spawn = Callable[..., "subprocess.Popen[Any]"]


class AgentError(RuntimeError):
    """An agent refused a command, or ended."""


class RemoteAgent:
    """An agent process in a host's namespace. A context manager: leaving it ends the agent.

    ``spawn(argv, **popen_options)`` starts a process in the host's namespace; ``module`` is what it runs.
    """

    def __init__(self, host: str, spawn: Spawn, stderr: Any = None, module: str = "hosts.agent") -> None:
        self.host = host
        ours, theirs = socket.socketpair()
        argv: Sequence[str] = [sys.executable, "-m", module, str(theirs.fileno())]
        with theirs:
            self._process = spawn(argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stderr=stderr)
        ours.settimeout(TIMEOUT_S)
        self._socket = ours
        self._lines = ours.makefile("rb")

    @property
    def pid(self) -> int:
        """The agent's process id."""
        return self._process.pid

    def __enter__(self) -> RemoteAgent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()
        self._socket.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Gives a command and returns the answer. Raises AgentError where the agent cannot, or is gone."""
        try:
            self._socket.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
            line = self._lines.readline()
        except OSError as error:
            raise AgentError(f"the agent on {self.host} does not answer: {error}") from None
        if not line:
            raise AgentError(f"the agent on {self.host} ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise AgentError(f"the agent on {self.host} cannot {do}: {answer['error']}")
        return answer
