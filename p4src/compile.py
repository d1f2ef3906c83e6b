"""Compile the switch program and record hashes of its sources: ``python -m mrclab.p4src.compile``."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = HERE / "build"
PROGRAM = "mrc_switch"
MANIFEST = BUILD / "sources.json"
COMPILER = "p4c-bm2-ss"


def source_digests() -> dict[str, str]:
    """Return the SHA-256 hash of each P4 source, by file name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(HERE.glob("*.p4"))}


def has_compiler() -> bool:
    """Return True if p4c-bm2-ss, the P4 compiler for BMv2, is on PATH."""
    return shutil.which(COMPILER) is not None


def run_p4c(
    source: Path, json_file: Path, p4info: Path, *, includes: Sequence[Path] = (), cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Compile a P4 program with p4c-bm2-ss, the compiler for BMv2. The result's ``stderr`` has its messages.

    Included files are searched first in the directory of ``source``, then in ``includes``.
    """
    words = [COMPILER, "--std", "p4-16", "-o", str(json_file), "--p4runtime-files", str(p4info)]
    words += [word for folder in includes for word in ("-I", str(folder))]
    return subprocess.run([*words, str(source)], cwd=cwd, capture_output=True, text=True, check=False)


def main() -> int:
    """Compile the switch program with the p4c-bm2-ss on PATH, and return the exit code."""
    p4c = shutil.which(COMPILER)
    if p4c is None:
        print("make p4: no p4c-bm2-ss on PATH: install p4lang's p4c first", file=sys.stderr)
        return 3
    BUILD.mkdir(exist_ok=True)
    outputs = Path(f"build/{PROGRAM}.json"), Path(f"build/{PROGRAM}.p4info.txtpb")
    done = run_p4c(Path(f"{PROGRAM}.p4"), *outputs, cwd=HERE)
    sys.stderr.write(done.stderr)
    if done.returncode != 0:
        return 1
    said = subprocess.run([p4c, "--version"], capture_output=True, text=True, check=True)
    version = re.search(r"\d+\.\d+[\d.]*", said.stdout + said.stderr)
    manifest = {"p4c": version[0] if version else "unknown", "sha256": source_digests()}
    MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
