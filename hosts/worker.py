"""The main loop of a process on a host that works and takes requests at the same time, as an agent does.

Such a process is started as ``python -m MODULE CONTROL_FD`` with one end of a socket pair;
`mrclab.hosts.remote` has the other end. The form of requests and answers is that of `mrclab.linux.requests`.
"""

from __future__ import annotations

import gc
import logging
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import psutil

from mrclab.linux.requests import REQUEST_BYTES, Request, TooLongError, carry_out, encode, read_line, refusal

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
