"""``mrclab prune``: list the size of results on the disk, and remove old results or captures."""

from __future__ import annotations

import argparse
import json
import shutil
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mrclab.linux.errors import InputError
from mrclab.output import bytes_text, is_held, size_of

RESULT, ASKED = "result.json", "run.json"
CAPTURES = "captures"


@dataclass(frozen=True, slots=True)
class Kept:
    """A run's directory: its size, the size of its captures, and the time of its last write (Unix time)."""

    directory: Path
    bytes: int
    capture_bytes: int
    written_s: float


def prune(args: argparse.Namespace) -> int:
    """List the runs below a directory. Remove old runs (``--keep``) or captures (``--captures``).

    A run that still runs keeps everything. Raise InputError if there is no such directory, or ``--keep`` is
    negative.
    """
    if args.keep is not None and args.keep < 0:
        raise InputError(f"it must be 0 or more, not {args.keep}", where="--keep")
    root = Path(args.directory)
    if not root.is_dir():
        raise InputError(f"no directory '{root}': give one that holds results")
    runs = find_runs(root)
    old = set(beyond(runs, args.keep)) if args.keep is not None else set()
    freed = 0
    for run in runs:
        doing = "remove" if run in old else "captures" if args.captures and run.capture_bytes else ""
        if doing and any(map(is_held, (run.directory, run.directory.parent))):
            doing = "running"
        freed += {"remove": run.bytes, "captures": run.capture_bytes}.get(doing, 0)
        sizes = f"{bytes_text(run.bytes):>8}  captures {bytes_text(run.capture_bytes):>8}"
        print(f"{sizes}  {run.directory}{_said(doing, args.dry_run)}")
        if doing in ("remove", "captures") and not args.dry_run:
            remove(run, whole=doing == "remove")
    total = sum(run.bytes for run in runs)
    word = "would free" if args.dry_run else "freed"
    print(f"{len(runs)} runs, {bytes_text(total)}; {word} {bytes_text(freed)}")
    if args.keep is None and not args.captures:
        print(
            "to make room: mrclab prune --captures (figures and pages stay), or --keep N (of each scenario)"
        )
    return 0


def find_runs(root: Path) -> list[Kept]:
    """Return the runs below a directory, oldest first. Do not follow symbolic links."""
    places = {path.parent for name in (RESULT, ASKED) for path in root.rglob(name) if not path.is_symlink()}
    runs = [
        Kept(
            place,
            size_of(place),
            sum(size_of(captures) for captures in place.glob(f"*/{CAPTURES}")),
            max(path.stat().st_mtime for name in (RESULT, ASKED) if (path := place / name).exists()),
        )
        for place in places
    ]
    return sorted(runs, key=lambda run: (run.written_s, run.directory))


def beyond(runs: Sequence[Kept], keep: int) -> list[Kept]:
    """Return all runs except the ``keep`` newest runs of each scenario in each folder.

    The runs of ``mrclab run figures`` have a folder each time. They count as runs in the folder above.
    """
    scenarios: dict[tuple[Path, str], list[Kept]] = defaultdict(list)
    for run in runs:
        folder, name = run.directory.parent, _scenario_of(run.directory)
        scenarios[folder.parent if run.directory.name == name else folder, name].append(run)
    return [run for same in scenarios.values() for run in (same[:-keep] if keep else same)]


def _scenario_of(directory: Path) -> str:
    """Return the name of a run's scenario, or "" if no file of the run has it."""
    for name in (ASKED, RESULT):
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            return str(json.loads((directory / name).read_bytes())["scenario"])
    return ""


def remove(run: Kept, *, whole: bool) -> None:
    """Remove a run, or only its captures."""
    for place in [run.directory] if whole else list(run.directory.glob(f"*/{CAPTURES}")):
        shutil.rmtree(place)


def _said(doing: str, dry_run: bool) -> str:
    if doing == "running":
        return "  (still runs: stays)"
    words = {"remove": "removed", "captures": "captures removed", "": ""}[doing]
    return f"  ({'would be ' if dry_run else ''}{words})" if words else ""
