"""The one kind of error that a person's input can cause."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input: one line that says where it is and how to mend it. The command line exits with 2."""

    def __init__(self, message: str, *, where: str | None = None, line: int | None = None) -> None:
        self.where = where
        self.line = line
        place = ":".join(str(part) for part in (where, line) if part is not None)
        # A key or a value that is quoted in the message may hold anything, line ends included.
        super().__init__(" ".join(f"{place}: {message}".splitlines() if place else message.splitlines()))
