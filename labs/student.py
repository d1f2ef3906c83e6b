"""A student's folder: started from a skeleton, and packed for handing in."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mrclab.labs.catalogue import folder_of
from mrclab.labs.model import Lab, Outcome, document
from mrclab.linux.errors import InputError
from mrclab.linux.system import is_root

MARKER = ".mrclab-lab"
"""The file that says which lab a folder belongs to."""
_IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc")
_LARGEST_BYTES = 5_000_000


def start(lab: Lab, folder: Path) -> list[str]:
    """Copy a lab's skeleton and its README into a new folder; return the names of the files.

    Raise InputError where something is there already: a student's work is never written over.
    """
    return _copied(lab, "start", folder)


def solution(lab: Lab, folder: Path) -> list[str]:
    """Copy a lab's solution into a new folder; return the names of the files. Raise InputError as `start`."""
    return _copied(lab, "solution", folder)


def _copied(lab: Lab, part: str, folder: Path) -> list[str]:
    if folder.exists():
        raise InputError(f"{folder} is there already: remove it, or name another folder")
    source = folder_of(lab)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source / "start", folder, ignore=_IGNORED)
        if part != "start":
            shutil.copytree(source / part, folder, ignore=_IGNORED, dirs_exist_ok=True)
        shutil.copy(source / "README.md", folder / "README.md")
        (folder / MARKER).write_text(f"{lab.folder}\n", encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"cannot make {folder}: {error.strerror or error}") from None
    _hand_over(folder)
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def work_folder(lab: Lab, given: str | None, here: Path) -> Path:
    """Return the folder with a student's work: the given one, ``here``, or the usual one below.

    Raise InputError where there is none, or it belongs to another lab.
    """
    if given is not None:
        folder = Path(given)
    else:
        folder = here if (here / MARKER).is_file() else here / lab.student_folder
    if not folder.is_dir():
        raise InputError(f"no folder {folder}: 'mrclab lab start {lab.number}' makes it")
    marker = folder / MARKER
    belongs = marker.read_text(encoding="utf-8").strip() if marker.is_file() else lab.folder
    if belongs != lab.folder:
        raise InputError(f"{folder} is the folder of lab {belongs}, not of {lab.folder}")
    return folder


def pack(
    lab: Lab, folder: Path, out: Path, outcomes: Sequence[Outcome], when: str, version: str
) -> dict[str, object]:
    """Write a hand-in: a zip file with the student's files and ``result.json``; return the latter's content.

    Packed are the lab's files and whatever else of up to 5 MB lies in the folder itself. Raise InputError
    where one of the lab's files is missing.
    """
    missing = [name for name in lab.spec.files if not (folder / name).is_file()]
    if missing:
        raise InputError(f"{folder} has no {missing[0]}, which is to be handed in")
    own = {path.name for path in folder.iterdir() if _is_work(path)}
    names = sorted({*lab.spec.files, *own})
    contents = {name: (folder / name).read_bytes() for name in names}
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    result = document(lab, outcomes, sums, when, version)
    try:
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in contents.items():
                archive.writestr(f"{lab.student_folder}/{name}", content)
            archive.writestr(f"{lab.student_folder}/result.json", json.dumps(result, indent=1) + "\n")
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror or error}") from None
    _hand_over(out)
    return result


def _hand_over(made: Path) -> None:
    """Give what root made in somebody else's folder to its owner.

    Students are root by sudo, or in a container.
    """
    owner = made.absolute().parent.stat()
    if not is_root() or owner.st_uid == 0:
        return
    with suppress(OSError):  # a file system without owners
        for path in (made, *made.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _is_work(path: Path) -> bool:
    names = ("README.md", "result.json")
    return (
        path.is_file()
        and path.suffix not in (".pyc", ".zip")
        and path.name not in names
        and path.stat().st_size <= _LARGEST_BYTES
    )
