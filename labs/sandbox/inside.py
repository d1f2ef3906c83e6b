"""A student's code in this very process: for a page in the student's own browser, which is the sandbox there.

Values cross as plain data all the same, so that checks see the same as with a process without rights.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mrclab.labs.sandbox.child import Loaded, explained, plain
from mrclab.labs.sandbox.remote import RemoteCode, StudentError, printable


class CodeInside(RemoteCode):
    """A student's files, imported here. A loop that never ends ends with the page's worker alone."""

    def __init__(self, folder: Path, report: Callable[[str], None] = lambda missing: None) -> None:
        """Take a folder, which is where Python looks for modules."""
        super().__init__(folder, report)
        self._loaded: Loaded | None = None
        self._own = folder

    def begin(self, limit_s: float) -> None:
        """Begin a check; nothing limits its time here."""
        self.end_check()

    def _ask(self, step: dict[str, Any]) -> Any:
        if self._loaded is None:
            self._loaded = Loaded(self._own)
            self.generation += 1
        steps = [*self._waiting, step]
        self._waiting.clear()
        try:
            value = None
            for one in json.loads(json.dumps(steps)):
                value = self._loaded.step(one)
            return json.loads(json.dumps(value, default=plain))
        except (Exception, SystemExit) as error:
            raise StudentError(printable(explained(error, self._own))) from None


def forget(folder: Path) -> None:
    """Have the modules of a folder imported again, as they are now."""
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(folder):
            del sys.modules[name]
