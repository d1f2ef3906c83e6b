"""What a machine can lack."""

from __future__ import annotations

from switches import errors


class MachineError(errors.MachineError):
    """The machine lacks something: one line with what, and how to mend it. The command line exits with 3."""

    def __init__(self, missing: str, mend: str) -> None:
        self.missing = missing
        self.mend = mend
        super().__init__(f"{missing}: {mend}")
