"""The errors that a user can meet, each with one clear line as its text, and the exit code for each."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input: one line that says where it is and how to mend it. The command line exits with 2."""

    exit_code = 2

    def __init__(self, message: str, *, where: str | None = None, line: int | None = None) -> None:
        self.where = where
        self.line = line
        place = ":".join(str(part) for part in (where, line) if part is not None)
        # A key or a value that is quoted in the message may hold anything, line ends included.
        super().__init__(" ".join(f"{place}: {message}".splitlines() if place else message.splitlines()))


class SwitchError(Exception):
    """Base of what can go wrong with a switch target; the command line exits with 1."""

    exit_code = 1


class BadInputError(SwitchError):
    """The input of a switch cannot be used: a file that is not BMv2 JSON, an interface that is missing."""

    exit_code = 2


class UnsupportedError(BadInputError):
    """A construct of the P4 program that the target cannot run as BMv2 would.

    Raised when a program is loaded, never later: a switch runs all of a program or none of it.
    """

    def __init__(self, construct: str, where: str = "") -> None:
        super().__init__(f"{where or 'program'}: {construct} is not supported by this target")
        self.construct = construct
        self.where = where


class MachineError(SwitchError):
    """The machine lacks something (privilege, kernel feature, a program). The command line exits with 3.

    ``missing`` says what, ``mend`` how to get it.
    """

    exit_code = 3

    def __init__(self, missing: str, mend: str = "") -> None:
        self.missing = missing
        self.mend = mend
        super().__init__(f"{missing}: {mend}" if mend else missing)
