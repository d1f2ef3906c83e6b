"""The points that are done: a file for each, written whole or not at all, so that a killed sweep goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mrclab.linux.errors import InputError
from mrclab.sweep.task import Outcome, Task


class Store:
    """The directory of a sweep's points. Raise InputError if it cannot be made."""

    def __init__(self, out: Path) -> None:
        self._folder = out / "points"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--out: cannot use '{out}': {error.strerror}") from None

    def save(self, outcome: Outcome) -> None:
        """Write an outcome's file, whole or not at all. Raise ValueError for one that failed."""
        task = outcome.task
        if outcome.error:
            raise ValueError(f"a failed point is not kept: {outcome.error}")
        path = self._path(task)
        draft = path.with_suffix(f".{os.getpid()}.part")
        content = {
            "schema": "mrclab.point/1",
            "params": dict(task.params),
            "seed": task.seed,
            "source": task.source,
            "metrics": dict(outcome.metrics),
            "seconds": round(outcome.seconds, 3),
            "host": outcome.host,
        }
        with draft.open("w", encoding="utf-8", newline="\n") as file:
            json.dump(content, file, indent=1, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)

    def load(self, tasks: Iterable[Task]) -> dict[int, Mapping[str, float]]:
        """Return the metrics of the tasks that are done, by their places. A file that is no point is none."""
        found: dict[int, Mapping[str, float]] = {}
        for task in tasks:
            try:
                content: Any = json.loads(self._path(task).read_text(encoding="utf-8"))
                found[task.place] = {name: float(value) for name, value in content["metrics"].items()}
            except (OSError, ValueError, LookupError, TypeError, AttributeError):
                continue
        return found

    def _path(self, task: Task) -> Path:
        return self._folder / f"{task.name}.json"
