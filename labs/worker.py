"""``python -m mrclab.labs.worker CHECK FOLDER FIRST``: run a lab's checks in a process of their own.

Each outcome is a line of JSON on standard output; what the student's code prints goes to standard error. A
process of its own can be ended where the code of a student does not end.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from mrclab.labs.checks import Checks, Student, run_all


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


def main(check: str, folder: str, first: str) -> int:
    """Run the checks from number ``first`` on, in the student's folder."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.dont_write_bytecode = True
    checks = load_checks(Path(check))
    os.chdir(folder)
    print(json.dumps({"titles": [named.title for named in checks]}), file=out, flush=True)
    for outcome in run_all(checks, Student(Path(folder)), int(first)):
        print(json.dumps(asdict(outcome)), file=out, flush=True)
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads that a student's code has started do not keep it
