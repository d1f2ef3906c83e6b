"""Where a run's results go."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from topologies import InputError


def directory(wish: str | None, scenario: str) -> Path:
    """The run's directory, which must not hold another run. Raises InputError."""
    out = Path(wish) if wish else Path("results") / scenario / datetime.now().strftime("%Y%m%d-%H%M%S")
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise InputError(f"--out: '{out}' is not empty: give a new directory")
    except OSError as error:
        raise InputError(f"--out: cannot use '{out}': {error.strerror}") from None
    return out
