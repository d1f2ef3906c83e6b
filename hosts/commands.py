"""The serving end of a control socket: a JSON object per line each way, answered in order."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Mapping
from typing import Any, Protocol

LOGGER = logging.getLogger(__name__)

Answer = dict[str, Any] | None


class Worker(Protocol):
    """What a process does besides answering."""

    def turn(self, control_fd: int) -> tuple[bool, Answer]:
        """Works a little; returns whether a command has come, and the answer to an earlier one if due.

        What it raises is that answer, too.
        """

    def answer(self, request: Mapping[str, Any]) -> Answer:
        """Carries out one command. None where the answer is to come later, from ``turn``."""

    def close(self) -> None:
        """Called when whoever commands is gone."""


def serve(control: socket.socket, worker: Worker) -> None:
    """Works and answers until the other end of the control socket closes."""
    with control, control.makefile("rb", buffering=0) as commands:
        while True:
            try:
                commanded, answer = worker.turn(control.fileno())
            except Exception as error:
                LOGGER.exception("the work failed")
                commanded, answer = False, _refusal(error)
            reply(control, answer)
            if commanded:
                line = commands.readline()
                if not line:
                    worker.close()
                    return
                reply(control, carry_out(line, worker.answer))


def carry_out(line: bytes, operation: Callable[[Mapping[str, Any]], Answer]) -> Answer:
    """What to reply to a command: the operation's answer (None: later), or the error it raised."""
    try:
        return operation(json.loads(line))
    except Exception as error:
        LOGGER.exception("command failed: %s", line)
        return _refusal(error)


def reply(control: socket.socket, answer: Answer) -> None:
    """Sends an answer, where there is one already."""
    if answer is not None:
        control.sendall(json.dumps(answer).encode() + b"\n")


def _refusal(error: Exception) -> dict[str, Any]:
    return {"error": f"{type(error).__name__}: {error}"}
