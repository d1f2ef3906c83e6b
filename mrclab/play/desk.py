"""Labs on the web page: functions for its worker (a browser thread), with JSON as input and output.

The folders and checks are the same as on the command line. The student's code runs in the worker. The values
that this code returns are converted to JSON and back, so that checks see the same values as from a sandbox.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mrclab.labs.catalogue import Lab, Outcome, find, folder_of
from mrclab.labs.checks import Student, run_all
from mrclab.labs.looking import main as show_way
from mrclab.labs.sandbox.child import Loaded, explained, plain
from mrclab.labs.sandbox.remote import RemoteCode, StudentError, printable
from mrclab.labs.student import pack
from mrclab.labs.worker import load_checks


class CodeInside(RemoteCode):
    """A student's code, run in the worker. An endless loop stops only the worker, not the page."""

    def __init__(self, folder: Path, report: Callable[[str], None] = lambda missing: None) -> None:
        """Use the files of a folder. Python must be able to import modules from this folder."""
        super().__init__(folder, report)
        self._loaded: Loaded | None = None
        self._own = folder

    def begin(self, limit_s: float) -> None:
        """Begin a check. Ignore ``limit_s``, because checks on the page have no time limit."""
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
    """Remove the modules of a folder from Python's cache, so that the next import reads the new files."""
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(folder):
            del sys.modules[name]


LABS = (1, 4, 5, 6, 8)
"""Labs that need no fabric and no compiler. NumPy is needed only for one check of lab 6."""
CAPTURE = ".pcap"


def skeletons() -> list[dict[str, Any]]:
    """Return the labs with their skeleton files. The page shows these files before Python has started."""
    found = []
    for number in LABS:
        lab = find(str(number))
        start = folder_of(lab) / "start"
        spec = lab.spec
        others = sorted({path.name for path in start.iterdir() if path.is_file()} - {*spec.files})
        found.append(
            {
                "number": number,
                "name": lab.student_folder,
                "title": spec.title,
                "aim": spec.aim,
                "minutes": spec.minutes,
                "handed_in": list(spec.files),
                "files": {name: shown(start / name) for name in (*spec.files, *others)},
            }
        )
    return found


def shown(path: Path) -> str:
    """Return the text of a file. For a capture, return its bytes in hexadecimal, 16 bytes a line."""
    if path.suffix != CAPTURE:
        return path.read_text(encoding="utf-8")
    data = path.read_bytes()
    return "".join(data[at : at + 16].hex(" ") + "\n" for at in range(0, len(data), 16))


class Desk:
    """The folders of a student's labs. Before each use, the texts on the page are written into the folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._outcomes: dict[int, Sequence[Outcome]] = {}

    def check(self, number: int, files: str, report: Callable[[str], None]) -> str:
        """Check a lab and return the outcomes in JSON. ``files`` is JSON: a text for each file name.

        ``report`` is called with each outcome, in JSON, as soon as its check ends.
        """
        lab, folder = self._written(number, files)
        student = Student(folder, code=CodeInside)
        outcomes = []
        for outcome in run_all(load_checks(folder_of(lab) / "check.py"), student):
            outcomes.append(outcome)
            report(json.dumps(asdict(outcome)))
        self._outcomes[number] = outcomes
        return json.dumps([asdict(outcome) for outcome in outcomes])

    def run(self, number: int, files: str, name: str) -> str:
        """Run a file as ``python FILE`` does, or show the path of a captured packet. Return the output."""
        _, folder = self._written(number, files)
        said = io.StringIO()
        os.chdir(folder)
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                if name.endswith(CAPTURE):
                    show_way(name)
                else:
                    sys.argv = [name]
                    runpy.run_path(name, run_name="__main__")
            except SystemExit:
                pass
            except BaseException as error:
                steps = [
                    step
                    for step in traceback.extract_tb(error.__traceback__)
                    if "/mrclab/" not in step.filename
                ]
                said.write("".join(traceback.format_list(steps[-3:])) + f"{type(error).__name__}: {error}\n")
        return said.getvalue()

    def hand_in(self, number: int, files: str, when: str, version: str) -> bytes:
        """Return the submission with the last check's outcomes, in the format of ``mrclab lab submit``."""
        lab, folder = self._written(number, files)
        out = self._root / f"{lab.student_folder}.zip"
        pack(lab, folder, out, self._outcomes.get(number, ()), when, version)
        return out.read_bytes()

    def _written(self, number: int, files: str) -> tuple[Lab, Path]:
        lab = find(str(number))
        folder = self._root / lab.student_folder
        texts: Mapping[str, str] = json.loads(files)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        forget(self._root)
        sys.path[:] = [str(folder), *(path for path in sys.path if Path(path).parent != self._root)]
        for name, text in texts.items():
            path = folder / Path(name).name
            if path.suffix == CAPTURE:
                path.write_bytes(_bytes_of(text))
            else:
                path.write_text(text, encoding="utf-8")
        return lab, folder


def _bytes_of(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return text.encode()  # this is no capture: the lab's check reports the mistake
