"""The progress line of a training: its step, its loss and the remaining time."""

from __future__ import annotations

import json
from pathlib import Path

from mrclab.experiments.run.training import COURSE, STEPS, words_of


def begun(folder: Path, steps: int) -> Path:
    folder.mkdir()
    (folder / COURSE).write_text(json.dumps({"measure_ns": 0}) + "\n", encoding="utf-8")
    lines = [
        {"start_ns": n * 10**9, "computed_ns": n * 10**9 + 1, "end_ns": (n + 1) * 10**9, "loss": 2.714}
        for n in range(steps)
    ]
    (folder / STEPS).write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return folder


def test_they_are_of_the_newest_repetition_that_has_a_step(tmp_path: Path) -> None:
    names = ("mrc 1/2", "mrc 2/2", "rocev2 1/2")
    directories = {name: tmp_path / str(number) for number, name in enumerate(names)}
    assert words_of(directories, 30, 5) == ""
    begun(directories["mrc 1/2"], 30)
    assert words_of(directories, 30, 60) == "mrc 1/2: step 30 of 30, loss 2.71, about 2 min left"
    assert words_of(directories, 30, 35) == "mrc 1/2: step 30 of 30, loss 2.71, about 70 s left"
    begun(directories["mrc 2/2"], 15)
    assert words_of(directories, 30, 60) == "mrc 2/2: step 15 of 30, loss 2.71, about 52 s left"
    begun(directories["rocev2 1/2"], 0)
    assert words_of(directories, 30, 60) == "mrc 2/2: step 15 of 30, loss 2.71, about 52 s left"
