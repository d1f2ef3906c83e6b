"""Make every break (a bug put in on purpose), run the tests that must find it, and print a table.

    python -m tests.breaks                  all breaks, on all CPUs
    python -m tests.breaks --row "2.8 "     the breaks of the rows that begin with this text

The exit code is 1 if a break was not found, or if a test fails without a break.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.breaks.run import run, unbroken
from tests.breaks.table import breaks
from tests.support.conformance import nodes
from tests.support.paths import ROOT


def main() -> int:
    """Print the table of results and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.breaks", description=__doc__.split("\n")[0])
    parser.add_argument("--row", default="", help="only rows that begin with this text")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="breaks at a time")
    options = parser.parse_args()
    chosen = [broken for broken in breaks() if broken.row.startswith(options.row)]
    places = nodes()
    began = time.monotonic()
    bad = unbroken(ROOT, places, sorted({name for broken in chosen for name in broken.tests}))
    for name, outcome in bad.items():
        print(f"{name} does not pass without a break: {outcome}", file=sys.stderr)
    print("| Row | Break | Test | Outcome |\n|---|---|---|---|")
    survived = 0
    for verdict in run(ROOT, places, chosen, options.jobs):
        broken = verdict.broken
        survived += not verdict.found
        for name in broken.tests:
            print(f"| {broken.row} | {broken.what} | `{name}` | {verdict.outcomes[name]} |", flush=True)
    taken = time.monotonic() - began
    print(f"\n{len(chosen)} breaks, {len(chosen) - survived} found, {survived} not; {taken:.0f} s")
    return 1 if bad or survived else 0


if __name__ == "__main__":
    sys.exit(main())
