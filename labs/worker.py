"""``python -m mrclab.labs.worker CHECK FOLDER FIRST LIMIT_S [NUMBER]``: run a lab's checks in a process.

Each outcome is a line of JSON on standard output. The output of the student's code goes to standard error.
The student's code runs in another process, without rights (`mrclab.labs.sandbox`). This process only reads
the student's files. The files may make this process slow or large, so the caller can end this process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from mrclab.labs.checks import Checks, Student, run_all
from mrclab.labs.student import Variant
from mrclab.linux.system import end_with_parent, is_linux


def load_checks(path: Path) -> Checks:
    """Return the checks in a file."""
    spec = importlib.util.spec_from_file_location(f"lab_{path.parent.name[:2]}_check", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    checks = module.CHECKS
    assert isinstance(checks, Checks)
    return checks


def main(check: str, folder: str, first: str, limit_s: str, number: str | None = None) -> int:
    """Run the checks from number ``first`` on. The student's code has ``limit_s`` seconds for each check.

    The variant belongs to ``number``, the student's number, or if None to the number in the folder.
    """
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.dont_write_bytecode = True
    if is_linux():
        end_with_parent()
    checks = load_checks(Path(check))
    student = Student(Path(folder), _report, None if number is None else Variant(number))
    print(json.dumps({"titles": [named.title for named in checks]}), file=out, flush=True)
    try:
        for outcome in run_all(checks, student, int(first), float(limit_s)):
            print(json.dumps(asdict(outcome)), file=out, flush=True)
    finally:
        student.code.close()
    return 0


def _report(missing: str) -> None:
    print(f"note: your code runs with limits only, as {missing}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
