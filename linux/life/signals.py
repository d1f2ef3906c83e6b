"""Turn the signals that end a program (SIGINT, SIGTERM, SIGHUP) into exceptions, defer them, or pass them on.

Python raises KeyboardInterrupt for SIGINT. Here the other signals raise ``Ended``, so that every ``with``
block cleans up. Only the main thread receives signals, so these functions have no effect in other threads.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Ended(SystemExit):
    """A signal ended the program. The exit code is 128 plus the signal's number, as in a shell."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(128 + number)

    def __str__(self) -> str:
        return f"ended by {signal.Signals(self.number).name}"


def _raise(number: int, frame: FrameType | None) -> None:
    raise Ended(number)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def as_exceptions() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise Ended within the ``with``. A signal with a handler keeps its handler.

    A signal that was ignored before (``nohup``) stays ignored.
    """
    set_here = []
    if _in_main_thread():
        for number in SIGNALS[1:]:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _raise)
                set_here.append(number)
    try:
        yield
    finally:
        for number in set_here:
            signal.signal(number, signal.SIG_DFL)


def ignore_interrupt() -> None:
    """Ignore Ctrl-C from now on: the exit code is decided, and only the interpreter has to end."""
    if _in_main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _handled(handler: Callable[[int], None]) -> Iterator[None]:
    """Call ``handler`` for each signal within the ``with``, in place of its default action."""
    before: dict[signal.Signals, Any] = {}
    try:
        for number in SIGNALS if _in_main_thread() else ():
            known = signal.getsignal(number)
            if known not in (None, signal.SIG_IGN):  # None: a handler in C, which Python cannot restore
                before[number] = signal.signal(number, lambda number, _frame: handler(number))
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)


@contextmanager
def first_only(at_once: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Let the first signal within the ``with`` raise its exception, and drop all later signals.

    So the interrupted work can save its data even if the user presses Ctrl-C again. ``at_once`` is called
    before the exception is raised.
    """
    came: list[int] = []

    def handler(number: int) -> None:
        came.append(number)
        if len(came) == 1:
            at_once()
            raise KeyboardInterrupt if number == signal.SIGINT else Ended(number)

    with _handled(handler):
        yield


@contextmanager
def deferred() -> Iterator[None]:
    """Defer the signals to the end of the ``with``, so that the work inside is never left half done.

    If the program is already ending because of a signal, later signals are dropped.
    """
    came: list[int] = []
    try:
        with _handled(came.append):
            yield
    finally:
        if not isinstance(sys.exc_info()[1], KeyboardInterrupt | Ended):
            for number in dict.fromkeys(came):
                signal.raise_signal(number)


@contextmanager
def passed_on(action: Callable[[], None]) -> Iterator[None]:
    """Call ``action`` for each signal within the ``with``. The signal does not end this process.

    So ``action`` can end a child process, and this process ends after the child.
    """
    with _handled(lambda _number: action()):
        yield
