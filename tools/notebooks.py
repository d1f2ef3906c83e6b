"""Execute the notebooks of docs/notebooks and store their outputs in them.

    python tools/notebooks.py [NAME ...]     # all of them, or recovery, compare, ...

The first cell of a notebook prepares a new folder for it. A block of code whose first line is ``# NAME``
is written to the file NAME. Lines that begin with ``mrclab`` are run in virtual time. Then the notebook runs
in the folder. This tool needs nbclient and ipykernel: pip install nbclient ipykernel.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "notebooks"
STAMP = "mrclab_sources"
"""The key in a notebook's metadata for the `digest` of the sources that made its outputs."""
_BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.S | re.M)
_FILE = re.compile(r"# (?P<name>[\w-]+\.\w+)\n")


def read(path: Path) -> dict[str, Any]:
    """Return a notebook."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def text_of(cell: dict[str, Any]) -> str:
    """Return the source of a cell."""
    return "".join(cell["source"])


def digest(notebook: dict[str, Any]) -> str:
    """Return a hash of a notebook's first cell and code. If it has changed, the stored outputs are stale.

    The layout of code does not change the hash, so that code can be formatted without running it again.
    """
    code = [text_of(cell) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    sources = json.dumps([needs(notebook), [re.sub(r"[\s,()]", "", text) for text in code]])
    return hashlib.sha256(sources.encode()).hexdigest()[:16]


def needs(notebook: dict[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Return the files in the first cell (text by name), and the commands in it."""
    files, commands = {}, []
    for block in _BLOCK.findall(text_of(notebook["cells"][0])):
        named = _FILE.match(block)
        if named:
            files[named["name"]] = block[named.end() :]
        commands += [line for line in block.splitlines() if line.startswith("mrclab ")]
    return files, commands


def prepare(notebook: dict[str, Any], folder: Path) -> None:
    """Write the files of a notebook and run its commands in a folder. Exit if a command fails."""
    files, commands = needs(notebook)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    for command in commands:
        print(f"  {command}", flush=True)
        words = [sys.executable, "-m", *command.partition("#")[0].split()]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"notebooks: '{command}' ended with {done.returncode}: {done.stderr.strip()}")


def execute(path: Path) -> None:
    """Run a notebook in a new folder and store its outputs, without times and execution numbers."""
    try:
        import nbformat
        from nbclient import NotebookClient
    except ImportError:
        raise SystemExit(
            "notebooks: install nbclient and ipykernel: pip install nbclient ipykernel"
        ) from None
    notebook = read(path)
    with tempfile.TemporaryDirectory() as scratch:
        prepare(notebook, Path(scratch))
        node = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
        NotebookClient(node, timeout=600, resources={"metadata": {"path": scratch}}).execute()
    for cell in node["cells"]:
        cell["metadata"] = {}
        if cell["cell_type"] == "code":
            cell["execution_count"] = None
            cell["outputs"] = [_kept(output) for output in cell["outputs"] if not _is_address(output)]
    node["metadata"]["language_info"] = {"name": "python"}
    node["metadata"][STAMP] = digest(notebook)
    path.write_text(nbformat.writes(node, indent=1) + "\n", encoding="utf-8", newline="\n")


def _is_address(output: Any) -> bool:
    """Return True if an output is only an object's name and address, such as ``<Legend at 0x7f...>``."""
    plain = "".join(output.get("data", {}).get("text/plain", ""))
    return (
        "image/png" not in output.get("data", {}) and re.fullmatch(r"<.* at 0x[0-9a-f]+>", plain) is not None
    )


def _kept(output: Any) -> Any:
    """Return an output without the parts that differ between machines."""
    if "execution_count" in output:
        output["execution_count"] = None
    data = output.get("data", {})
    if "text/html" in data:
        data["text/html"] = re.sub(
            r"<style scoped>.*?</style>\s*", "", "".join(data["text/html"]), flags=re.S
        )
    if "image/png" in data:
        data["text/plain"] = "a picture"
        output["metadata"] = {}
    return output


def main(names: Sequence[str]) -> None:
    """Execute notebooks."""
    for path in [FOLDER / f"{name}.ipynb" for name in names] or sorted(FOLDER.glob("*.ipynb")):
        print(path.relative_to(ROOT), flush=True)
        execute(path)


if __name__ == "__main__":
    main(sys.argv[1:])
