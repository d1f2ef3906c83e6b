"""Requests of a page's viewers, which the server's threads pass on to the thread of the session."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from mrclab.linux.errors import InputError, MrclabError

LOGGER = logging.getLogger(__name__)


class PageRequests:
    """A queue of requests for one thread, which also updates the page every ``period_s`` seconds.

    A ``fatal`` error of a request also ends the session: it is raised in the session's thread.
    """

    def __init__(self, period_s: float, fatal: tuple[type[Exception], ...] = ()) -> None:
        self._queue: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._period_s = period_s
        self._fatal = fatal

    @property
    def stopping(self) -> bool:
        """True after ``stop``."""
        return self._stopping.is_set()

    def do(self, work: Callable[[], Any]) -> Future[Any]:
        """Run ``work`` soon in the session's thread, and return a future of its result."""
        future: Future[Any] = Future()
        self._queue.put((work, future))
        return future

    def stop(self) -> None:
        """Wake up the session's thread, which should end."""
        self._stopping.set()
        self._queue.put((lambda: None, Future()))

    def answer_until(self, due_s: float) -> None:
        """Carry out requests until the next page update is due. If it is due already, carry out a few."""
        until_s = max(due_s, time.monotonic() + self._period_s / 2)
        while True:
            try:
                work, future = self._queue.get(timeout=max(0.0, due_s - time.monotonic()))
            except queue.Empty:
                return
            try:
                future.set_result(work())
            except self._fatal as error:
                future.set_exception(error)
                raise
            except (MrclabError, ValueError) as error:
                future.set_exception(error)
            except Exception as error:
                LOGGER.exception("a request failed")
                future.set_exception(error)
            if self.stopping or time.monotonic() >= until_s:
                return

    def refuse_rest(self) -> None:
        """Refuse the requests that are left after the end of the session."""
        while not self._queue.empty():
            _, future = self._queue.get()
            if not future.done():
                future.set_exception(InputError("the session has ended"))
