"""Make breaks in copies of the project and run the tests that have to find them."""

from __future__ import annotations

import compileall
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode
from queue import SimpleQueue

from tests.breaks.outcomes import REPORT
from tests.breaks.table import Break

PASSED = "passed"
FOUND = "found"
NOT_RUN = "not run"
TIMEOUT_S = 600
_LEFT_OUT = shutil.ignore_patterns(".*", "results", "__pycache__", "*.egg-info")


@dataclass(frozen=True)
class Verdict:
    """What came of one break."""

    broken: Break
    outcomes: Mapping[str, str]
    """By test: `found`, `passed` where it did not notice, or what happened instead of an assertion."""

    @property
    def found(self) -> bool:
        """Each of its tests found the error."""
        return all(self.outcomes[name] == FOUND for name in self.broken.tests)


class Tree:
    """A copy of the project, to break and to mend again."""

    def __init__(self, source: Path, root: Path) -> None:
        shutil.copytree(source, root, symlinks=True, ignore=_LEFT_OUT, dirs_exist_ok=True)
        self.root = root
        # Files that are changed and changed back within a second are told apart by their content.
        for package in root.iterdir():
            compileall.compile_dir(package, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)

    def run(self, nodes: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
        """Run tests, in pure Python; return how each ended."""
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            environment = {
                **os.environ,
                "MRCLAB_PURE": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONPATH": str(self.root),
                REPORT: str(report),
            }
            options = ["-q", "-p", "no:cacheprovider", "-p", "tests.breaks.outcomes", "-p", "no:xdist"]
            command = [sys.executable, "-m", "pytest", *options, *(nodes[name] for name in names)]
            try:
                done = subprocess.run(
                    command,
                    cwd=self.root,
                    env=environment,
                    timeout=TIMEOUT_S,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
            except subprocess.TimeoutExpired:
                return dict.fromkeys(names, f"took more than {TIMEOUT_S} s")
            if not report.exists():
                tail = done.stdout.decode(errors="replace")[-300:]
                return dict.fromkeys(names, f"pytest failed: {tail}")
            seen = json.loads(report.read_text(encoding="utf-8"))
        if seen["core"] is not None and not Path(seen["core"]).is_relative_to(self.root):
            raise RuntimeError(f"the tests ran with {seen['core']}, not with the copy in {self.root}")
        return {name: seen["tests"].get(name, NOT_RUN) for name in names}

    def run_broken(self, nodes: Mapping[str, str], broken: Break) -> Verdict:
        """Make one break, run its tests, and mend it."""
        path = self.root / broken.file
        source = path.read_text(encoding="utf-8")
        path.write_text(broken.apply(source), encoding="utf-8")
        try:
            return Verdict(broken, self.run(nodes, broken.tests))
        finally:
            path.write_text(source, encoding="utf-8")


def unbroken(source: Path, nodes: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return how tests end that do not pass though nothing is broken."""
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Tree(source, Path(folder)).run(nodes, list(names))
    return {name: outcome for name, outcome in outcomes.items() if outcome != PASSED}


def run(source: Path, nodes: Mapping[str, str], all_breaks: list[Break], jobs: int) -> Iterator[Verdict]:
    """Make each break in a copy of `source`, so many at a time; yield the verdicts in order."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for number in range(jobs):
            trees.put(Tree(source, Path(folder) / str(number)))

        def one(broken: Break) -> Verdict:
            tree = trees.get()
            try:
                return tree.run_broken(nodes, broken)
            finally:
                trees.put(tree)

        yield from pool.map(one, all_breaks)
