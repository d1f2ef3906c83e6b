"""What goes wrong for a user of a switch target, each with one clear line as its text."""


class SwitchError(Exception):
    """Base of the errors below; `str()` of it is one line, fit to show to a user."""

    exit_code = 1


class BadInputError(SwitchError):
    """The input cannot be used: a file that is not BMv2 JSON, an interface that is not there."""

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
    """The machine lacks something (privilege, kernel feature, a program); the text names the mend."""

    exit_code = 3
