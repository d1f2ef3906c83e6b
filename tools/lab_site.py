"""Add the page of the labs to the folder that tools/play_site.py has written.

    python tools/lab_site.py FOLDER

The page uses the labs' folders and checks of the command line, without solutions. Wheels that the checks need
come from PyPI; tools/lab_wheels.txt has their hashes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import markdown
from play_site import CACHE, COMPILE, ROOT, archive_of, modules, run_in_node

from mrclab.labs.catalogue import find, folder_of
from mrclab.play.desk import LABS, skeletons

WHEELS = ROOT / "tools" / "lab_wheels.txt"
PLATFORM = ("--platform", "pyemscripten_2026_0_wasm32", "--python-version", "3.14", "--abi", "cp314")
PACKAGE = ROOT / "mrclab"
IMPORTS = """
import json, sys, tempfile
for name in ("numpy", "zlib_ng"):
    sys.modules[name] = None
from pathlib import Path
from mrclab.labs.catalogue import find, folder_of
from mrclab.labs.spraying import spray
from mrclab.labs.worker import load_checks
from mrclab.play.desk import Desk
desk = Desk(Path(tempfile.mkdtemp()))
for number, files in json.loads(sys.stdin.read()):
    load_checks(folder_of(find(str(number))) / "check.py")
    for name in files:
        if number in (1, 8) and name.endswith((".py", ".pcap")):
            desk.run(number, json.dumps(files), name)
spray(None, packets=8)
found = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
print(json.dumps({name: file for name, file in found.items() if file}))
"""
"""A program that imports and uses the modules of the labs, and prints the files of all loaded modules."""


def wheels(folder: Path) -> list[str]:
    """Put the wheels into a folder and return their names. Exit if PyPI cannot be reached."""
    kept = CACHE.parent / "wheels"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
            *("--only-binary=:all:", "--implementation", "cp", "--require-hashes", *PLATFORM),
            *("--dest", str(kept), "-r", str(WHEELS)),
        ],
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit("lab_site: pip cannot fetch the wheels of tools/lab_wheels.txt: is PyPI reachable?")
    folder.mkdir(exist_ok=True)
    names = sorted(path.name for path in kept.glob("*.whl"))
    for name in names:
        shutil.copy(kept / name, folder / name)
    return names


def page_of(number: int, folder: Path) -> str:
    """Return the page of a lab in HTML, and copy its pictures to the folder."""
    source = folder_of(find(str(number)))
    for picture in source.glob("*.svg"):
        shutil.copy(picture, folder / picture.name)
    text = (source / "README.md").read_text(encoding="utf-8")
    return markdown.markdown(text, extensions=["tables", "fenced_code", "md_in_html"])


def data_of() -> dict[str, Path]:
    """Return the files that modules read: topologies, and the files of the labs that students get."""
    found = {f"mrclab/topologies/{path.name}": path for path in (PACKAGE / "topologies").glob("*.yaml")}
    for number in LABS:
        source = folder_of(find(str(number)))
        for path in (source / "lab.yaml", source / "check.py", *(source / "start").iterdir()):
            if path.is_file():
                found[f"mrclab/labs/{source.name}/{path.relative_to(source)}"] = path
    return found


def build(folder: Path) -> None:
    """Add the page, its modules and its wheels to a folder."""
    core = modules(IMPORTS, json.dumps([(lab["number"], lab["files"]) for lab in skeletons()]))
    archive_of(core | data_of(), folder / "labs.zip")
    run_in_node(folder, COMPILE, folder / "labs.zip")
    names = wheels(folder / "wheels")
    (folder / "wheels.json").write_text(json.dumps(names), encoding="utf-8")
    pages = [{**lab, "page": page_of(lab["number"], folder)} for lab in skeletons()]
    (folder / "labs.json").write_text(json.dumps(pages), encoding="utf-8")
    for name in ("lab.html", "lab.css", "lab.js", "lab-worker.js"):
        shutil.copy(ROOT / "mrclab" / "play" / "static" / name, folder / name)
    with (folder / "licences.txt").open("a", encoding="utf-8") as out:
        out.write(
            "\nfolder wheels: packages of PyPI; the licence of each is in its wheel, as `*.dist-info`\n"
        )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    build(Path(sys.argv[1]))
