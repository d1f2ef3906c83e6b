"""The errors that a user can meet: each has one clear line as its text, and an exit code.

``MrclabError`` is the base. Packages derive their own errors from it or from one of these:

* ``InputError`` (2): the user's input is wrong.
* ``MachineError`` (3): the machine lacks something.
* ``SwitchError`` (1): a switch, or the machinery that runs switches, failed; ``BadInputError`` (2) and
  ``UnsupportedError`` (2) are a switch's refusals of what it was given.
"""

from __future__ import annotations

from typing import ClassVar


class MrclabError(Exception):
    """Base of the errors that are reported in one line; ``exit_code`` is the command line's."""

    exit_code: ClassVar[int] = 1


class InputError(MrclabError, ValueError):
    """Bad input: one line with its place and the mend."""

    exit_code = 2

    def __init__(self, message: str, *, where: str | None = None, line: int | None = None) -> None:
        self.where = where
        self.line = line
        place = ":".join(str(part) for part in (where, line) if part is not None)
        # A key or a value that is quoted in the message may hold anything, line ends included.
        super().__init__(" ".join(f"{place}: {message}".splitlines() if place else message.splitlines()))


DAMAGE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What code raises that reads a document in which anything may be missing or of another kind."""


class MachineError(MrclabError):
    """The machine lacks something (privilege, kernel feature, a program).

    ``missing`` says what, ``mend`` how to get it.
    """

    exit_code = 3

    def __init__(self, missing: str, mend: str = "") -> None:
        self.missing = missing
        self.mend = mend
        super().__init__(f"{missing}: {mend}" if mend else missing)


class SwitchError(MrclabError):
    """A switch did not start, ended, or failed to carry out a request."""


class BadInputError(SwitchError):
    """The input of a switch cannot be used: a file that is not BMv2 JSON, an interface that is missing.

    Not an InputError, which is a ValueError: readers of programs turn ValueErrors into this.
    """

    exit_code = 2


class UnsupportedError(BadInputError):
    """A construct of the P4 program that the target cannot run as BMv2 would.

    Raised when a program is loaded, never later: a switch runs a whole program or nothing.
    """

    def __init__(self, construct: str, where: str = "") -> None:
        super().__init__(f"{where or 'program'}: {construct} is not supported by this target")
        self.construct = construct
        self.where = where


def reason(error: BaseException) -> str:
    """Return the text of an exception in one line; with its type if it is an unexpected one."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    lines = str(error).strip().splitlines()
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: '{error.filename}'" if error.filename else error.strerror
    if lines and isinstance(error, MrclabError | SystemExit):
        return " ".join(lines)
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
