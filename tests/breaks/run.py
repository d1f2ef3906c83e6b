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

from tests.breaks.mutation import Sources
from tests.breaks.outcomes import REPORT
from tests.breaks.table import Break

PASSED = "passed"
FOUND = "found"
NOT_RUN = "not run"
TIMEOUT_S = 600
_LEFT_OUT = shutil.ignore_patterns(".*", "results", "__pycache__", "*.egg-info")


@dataclass(frozen=True)
class Verdict:
    """The results of one break."""

    broken: Break
    outcomes: Mapping[str, str]
    """The outcome of each test: `found` or `passed` (not found), or an exception that proves nothing."""

    @property
    def found(self) -> bool:
        """True if all tests of the break found the error."""
        return all(self.outcomes[name] == FOUND for name in self.broken.tests)


class Tree:
    """A copy of the project, in which breaks are made and undone."""

    def __init__(self, source: Path, root: Path) -> None:
        shutil.copytree(source, root, symlinks=True, ignore=_LEFT_OUT, dirs_exist_ok=True)
        self.root = root
        # A file may change twice within a second, so its time does not show each change. Its hash does.
        for package in root.iterdir():
            compileall.compile_dir(package, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
        self._sources = Sources(root)

    def run(self, nodes: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
        """Run tests in pure Python and return how each of them ended."""
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
        """Make one break, run its tests, and restore the source."""
        path, wrong = broken.apply(self._sources)
        source = path.read_text(encoding="utf-8")
        path.write_text(wrong, encoding="utf-8")
        try:
            return Verdict(broken, self.run(nodes, broken.tests))
        finally:
            path.write_text(source, encoding="utf-8")


def unbroken(source: Path, nodes: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the outcomes of the tests that fail although nothing is broken."""
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Tree(source, Path(folder)).run(nodes, list(names))
    return {name: outcome for name, outcome in outcomes.items() if outcome != PASSED}


def run(source: Path, nodes: Mapping[str, str], all_breaks: list[Break], jobs: int) -> Iterator[Verdict]:
    """Make each break in a copy of `source`, up to `jobs` at a time. Yield the verdicts in order."""
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
