"""``mrclab doctor``: the present and the missing parts of the machine."""

from __future__ import annotations

import argparse

from mrclab.hosts import compiled
from mrclab.linux.errors import MachineError
from mrclab.testbed.doctor import Check, report
from mrclab.testbed.doctor import doctor as checks


def doctor(_args: argparse.Namespace) -> int:
    """Print every check and return the exit code: 3 if something required is missing."""
    found = (*checks(), Check("MRC core", compiled.in_use(), False, compiled.describe()))
    print(report(found))
    return MachineError.exit_code if any(check.required and not check.ok for check in found) else 0
