"""The errors that a user can meet: each has a text of one line, and an exit code.

``MrclabError`` is the base. Packages derive their own errors from it or from one of these:

* ``InputError`` (2): the user's input is wrong.
* ``MachineError`` (3): the machine lacks something.
* ``SwitchError`` (1): a switch, or the code that runs switches, failed. Its subclasses ``BadInputError`` (2)
  and ``UnsupportedError`` (2) mean that a switch cannot use its input.
"""

from __future__ import annotations

from typing import ClassVar


class MrclabError(Exception):
    """Base of the errors that are reported in one line. The command line exits with ``exit_code``."""

    exit_code: ClassVar[int] = 1


class InputError(MrclabError, ValueError):
    """Bad input. The message is one line, with the place of the error and how to correct it."""

    exit_code = 2

    def __init__(self, message: str, *, where: str | None = None, line: int | None = None) -> None:
        self.where = where
        self.line = line
        place = ":".join(str(part) for part in (where, line) if part is not None)
        # A key or a value in the message may contain line ends. They are replaced by spaces.
        super().__init__(" ".join(f"{place}: {message}".splitlines() if place else message.splitlines()))


DAMAGE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""The exceptions that code may raise while it reads a document with missing values or wrong types."""


class MachineError(MrclabError):
    """The machine lacks a privilege, a kernel feature or a program.

    ``missing`` says what is missing, and ``mend`` says how to provide it.
    """

    exit_code = 3

    def __init__(self, missing: str, mend: str = "") -> None:
        self.missing = missing
        self.mend = mend
        super().__init__(f"{missing}: {mend}" if mend else missing)


class SwitchError(MrclabError):
    """A switch did not start, ended too early, or failed to carry out a request."""


class BadInputError(SwitchError):
    """The input of a switch cannot be used: a file that is not BMv2 JSON, or a missing interface.

    The code that reads P4 programs turns each ValueError into this error. Unlike InputError, this class
    is no ValueError, because otherwise that code would turn this error into a new error.
    """

    exit_code = 2


class UnsupportedError(BadInputError):
    """A construct of the P4 program that the target cannot run as BMv2 would.

    Raised only while a program is loaded: a switch runs either the whole program or no part of it.
    """

    def __init__(self, construct: str, where: str = "") -> None:
        super().__init__(f"{where or 'program'}: {construct} is not supported by this target")
        self.construct = construct
        self.where = where


def reason(error: BaseException) -> str:
    """Return the text of an exception in one line. Begin with the type if it is unexpected."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    lines = str(error).strip().splitlines()
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: '{error.filename}'" if error.filename else error.strerror
    if lines and isinstance(error, MrclabError | SystemExit):
        return " ".join(lines)
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
