"""``python -m mrclab.labs.sandbox.child FOLDER STAGE CPU_S``: load a student's files and answer calls.

STAGE is the empty folder on which `confine` mounts the new file system. A request is a line of JSON with a
number and a list of steps. The answer is a line with the same number and the value of the last step, or the
error of the first step that failed. Values are plain data.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mrclab.labs.sandbox.confine import Limits, confine

FIELDS = ("value", "port", "sent", "acked", "lost", "trimmed", "ecn_marked")
"""The fields of an EV that a path policy can read, in the order in which requests list them."""
_OPTIONAL = ("on_sack", "on_trim", "on_loss")


class EvView:
    """An EV with the fields that a path policy can read."""

    __slots__ = FIELDS

    def update(self, row: Sequence[int]) -> None:
        """Set the fields from a row of numbers."""
        for name, value in zip(FIELDS, row, strict=True):
            setattr(self, name, value)


class Policy:
    """A student's path policy. Requests have EVs as rows of numbers; the policy gets `EvView`s."""

    def __init__(self, made: Callable[[random.Random], Any], seed: int) -> None:
        from mrclab.hosts.mrc.evs.ev import PathPolicy

        self._policy = made(random.Random(seed))
        self._evs: dict[int, EvView] = {}
        base = [getattr(PathPolicy, name) for name in _OPTIONAL]
        own = [getattr(type(self._policy), name, None) for name in _OPTIONAL]
        self.methods = [
            name for name, mine, given in zip(_OPTIONAL, own, base, strict=True) if mine not in (None, given)
        ]

    def update(self, rows: Sequence[Sequence[int]]) -> None:
        """Store the changed fields of EVs."""
        for row in rows:
            self._evs.setdefault(row[0], EvView()).update(row)

    def choose(self, now_ns: int, offered: Sequence[int]) -> int:
        """Return the number of the EV that the policy chose."""
        chosen: int = self._policy.choose(now_ns, [self._evs[value] for value in offered]).value
        return chosen

    def on_sack(self, now_ns: int, value: int, marked: bool) -> None:
        """Report an acknowledgement to the policy."""
        self._policy.on_sack(now_ns, self._evs[value], marked)

    def on_trim(self, now_ns: int, value: int) -> None:
        """Report a trimmed packet to the policy."""
        self._policy.on_trim(now_ns, self._evs[value])

    def on_loss(self, now_ns: int, value: int) -> None:
        """Report a lost packet to the policy."""
        self._policy.on_loss(now_ns, self._evs[value])


class Detector:
    """A student's loss detector. JSON has no sets, so `on_sack` turns a list into a set."""

    def __init__(self, made: Callable[[int, int], Any], window_ns: int, timeout_ns: int) -> None:
        self._detector = made(window_ns, timeout_ns)

    def on_sent(self, psn: int, now_ns: int) -> None:
        """Report a transmission to the detector."""
        self._detector.on_sent(psn, now_ns)

    def on_sack(self, cumulative: int, above: Sequence[int], now_ns: int) -> list[Any]:
        """Return the packets to send again."""
        return list(self._detector.on_sack(cumulative, frozenset(above), now_ns))

    def timer_ns(self) -> Any:
        """Return when to call `on_timer`."""
        return self._detector.timer_ns()

    def on_timer(self, now_ns: int) -> list[Any]:
        """Return the packets to send again."""
        return list(self._detector.on_timer(now_ns))


def arrays(args: Sequence[Any]) -> list[Any]:
    """Return the arguments, with each list turned into a numpy array."""
    import numpy as np

    return [np.array(arg) if isinstance(arg, list) else arg for arg in args]


ADAPTERS: dict[str, Callable[..., Any]] = {"policy": Policy, "detector": Detector}


_MOST_WORDS = 600


class Loaded:
    """The student's modules, and the objects that were made from their classes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._modules: dict[str, Any] = {}
        self._objects: list[Any] = []

    def step(self, step: dict[str, Any]) -> Any:
        """Carry out one step of a request and return its value."""
        kind = step["do"]
        if kind == "function":
            found = getattr(self.module(step["file"]), step["name"])
            args = arrays(step["args"]) if step["arrays"] else step["args"]
            return found(*args)
        if kind == "value":
            return getattr(self.module(step["file"]), step["name"])
        if kind == "make":
            made = getattr(self.module(step["file"]), step["name"])
            adapter: Callable[..., Any] = ADAPTERS[step["adapter"]]
            self._objects.append(adapter(made, *step["args"]))
            return [len(self._objects) - 1, getattr(self._objects[-1], "methods", [])]
        return getattr(self._objects[step["object"]], step["name"])(*step["args"])

    def module(self, name: str) -> Any:
        """Import a file of the folder once. The file can import the other files of the folder."""
        if name not in self._modules:
            path = self._folder / name
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[path.stem] = module
            spec.loader.exec_module(module)
            self._modules[name] = module
        return self._modules[name]


def explained(error: BaseException, folder: Path) -> str:
    """Describe an error, with the file and line of the student's code where it was raised."""
    if isinstance(error, SyntaxError):
        return f"{Path(error.filename or '').name}, line {error.lineno}: Python cannot read this: {error.msg}"
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(folder)
    ]
    text = " ".join(str(error).split())[:_MOST_WORDS]
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, NotImplementedError):
        what = f"nothing is written here yet{': ' + text if text else ''}"
    if own:
        return f"{Path(own[-1].filename).name}, line {own[-1].lineno}, in {own[-1].name}: {what}"
    return f"the check could not use your code: {what}"


def plain(value: Any) -> Any:
    """Convert a value for JSON: an array or a set to a list, and a numpy number to a Python number."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"a {type(value).__name__} is no number, text or list")


def main(folder: Path, stage: Path, cpu_s: int) -> None:
    """Answer requests until the input ends."""
    sys.dont_write_bytecode = True
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    missing = confine(folder, stage, Path(__file__).parents[2], Limits(cpu_s=cpu_s))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path.insert(0, str(folder))
    loaded = Loaded(folder)
    _write(answers, {"number": 0, "value": missing})
    for line in requests:
        request = json.loads(line)
        number = request["number"]
        try:
            value = None
            for step in request["steps"]:
                value = loaded.step(step)
            text = json.dumps({"number": number, "value": value}, default=plain)
        except BaseException as error:
            text = json.dumps({"number": number, "error": explained(error, folder)})
        answers.write(text.encode() + b"\n")
        answers.flush()


def _write(answers: Any, value: Any) -> None:
    answers.write(json.dumps(value).encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
    os._exit(0)
