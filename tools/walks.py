"""Count the files whose code runs in one operation: a packet, a fault, a simulated run, a click.

    python tools/walks.py [--files] COMMAND [ARG ...]

Runs a command, traces each of its Python processes, and prints the walk of each operation. The core runs as
pure Python, because compiled modules cannot be traced. A walk is a set of files. It has parts of two kinds:

* a span: the files whose functions run in one thread from a call to a return; the shortest such span counts;
* the callers: the files of the functions that have called a function, directly or indirectly.

Generated code (data classes, named tuples), imports, and the code of libraries do not count.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "MRCLAB_WALKS"
P4RUNTIME = "switches/ebpf/p4runtime"
OPTIMIZED = 2  # a flag that only the code of functions has, not of modules or classes

Part = tuple[str, str | None]
"""(function, None): the function's callers. (first, last): the span from first's call to last's return."""
WALKS: Mapping[str, Sequence[Part]] = {
    "a packet, from a write to its place in memory": [
        ("hosts/mrc/endpoint.py:Endpoint.post_write", "hosts/nic/ports.py:TransmitPort.send"),
        ("hosts/nic/device.py:Device._take_in", "hosts/mrc/responder.py:Responder.on_data"),
    ],
    "a fault of a live run, to result.json": [
        ("controller/fault_tables.py:FaultTables._write", None),
        ("experiments/measure/recovery.py:times", None),
        ("experiments/result/file.py:save_result", None),
    ],
    "a fault of a simulated run, to result.json": [
        ("simulator/faults.py:NetworkFaults.blackhole", None),
        ("experiments/measure/recovery.py:times", None),
        ("experiments/result/file.py:save_result", None),
    ],
    "a write over P4Runtime": [
        (
            f"{P4RUNTIME}/server.py:P4RuntimeServer.Write",
            f"{P4RUNTIME}/device.py:Device.write",
        )
    ],
    "a click on the live page": [
        ("mrclab/live/session.py:Session.do", None),
        ("mrclab/live/session.py:Session.make_fault", None),
        ("mrclab/daemon.py:Daemon._fault", None),
        ("controller/fault_tables.py:FaultTables._write", None),
        ("mrclab/live/card.py:work_out", None),
        ("experiments/measure/recovery.py:times", None),
        ("mrclab/live/server.py:Hub.put", None),
    ],
}


def main(arguments: Sequence[str]) -> int:
    """Run the command, and print the walks."""
    names, command = arguments[:1] == ["--files"], list(arguments)
    if names:
        del command[0]
    if command[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    if not command:
        print(__doc__, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        Path(folder, "sitecustomize.py").write_text(
            f"import sys\nsys.path.append({str(ROOT / 'tools')!r})\nimport walks\nwalks.Tracer().start()\n"
        )
        paths = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        code = subprocess.run(
            command, check=False, env={**os.environ, FOLDER: folder, "PYTHONPATH": paths, "MRCLAB_PURE": "1"}
        ).returncode
        for walk, files in found(Path(folder)):
            print(f"{len(files):3} files: {walk}")
            if names:
                print(*(f"      {file}" for file in files), sep="\n")
    return code


def found(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each walk whose parts were all traced, and its files in the order of their first calls."""
    seen: dict[Part, list[str]] = {}
    for path in folder.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            start, end, files = json.loads(line)
            part = start, end
            if end is None:
                seen[part] = list(dict.fromkeys([*seen.get(part, ()), *files]))
            elif part not in seen or len(files) < len(seen[part]):
                seen[part] = files
    for walk, parts in WALKS.items():
        if all(part in seen for part in parts):
            yield walk, list(dict.fromkeys(file for part in parts for file in seen[part]))


class Tracer:
    """The trace of a process: it writes a line to a file for each new part of a walk."""

    def __init__(self) -> None:
        self.parts: dict[str, list[str | None]] = {}
        for start, end in {part for parts in WALKS.values() for part in parts}:
            self.parts.setdefault(start, []).append(end)
        self.places: dict[CodeType, tuple[str, str]] = {}
        self.local = threading.local()
        self.written: set[str] = set()

    def start(self) -> None:
        """Trace this thread, and every thread that begins later."""
        threading.setprofile(self.on_event)
        sys.setprofile(self.on_event)

    def place(self, code: CodeType) -> tuple[str, str]:
        """Return the file and the function of code, or two empty texts if the code does not count."""
        if code not in self.places:
            file = os.path.realpath(code.co_filename)
            name = file[len(str(ROOT)) + 1 :] if file.startswith(f"{ROOT}{os.sep}") else ""
            left_out = not code.co_flags & OPTIMIZED or name.startswith((".", "<", "tests/", "tools/"))
            self.places[code] = ("", "") if left_out or not name else (name, f"{name}:{code.co_qualname}")
        return self.places[code]

    def on_event(self, frame: FrameType, event: str, arg: Any) -> None:
        """Record a call or a return."""
        if event not in ("call", "return"):
            return
        file, function = self.place(frame.f_code)
        spans: dict[Part, list[str]] = self.local.__dict__.setdefault("spans", {})
        if event == "return":
            for part in [part for part in spans if part[1] == function]:
                self.write(part, spans.pop(part))
            return
        for end in self.parts.get(function, ()) if function else ():
            if end is None:
                self.write((function, None), list(self.callers(frame)))
            else:
                spans[function, end] = []
        for files in spans.values() if file else ():
            files.append(file)

    def callers(self, frame: FrameType | None) -> Iterator[str]:
        """Yield the files of this frame and of its callers, the first caller first."""
        if frame is not None:
            yield from self.callers(frame.f_back)
            yield self.place(frame.f_code)[0]

    def write(self, part: Part, files: Sequence[str]) -> None:
        """Append a part to the file of this process at once, because the process may be killed."""
        line = json.dumps([*part, list(dict.fromkeys(filter(None, files)))])
        if line not in self.written:
            self.written.add(line)
            with Path(os.environ[FOLDER], f"{os.getpid()}.jsonl").open("a") as out:
                out.write(line + "\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
