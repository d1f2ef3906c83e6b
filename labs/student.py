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

from mrclab.labs.catalogue import folder_of, part_of
from mrclab.labs.model import Lab, Outcome, document
from mrclab.labs.sandbox import files
from mrclab.labs.variants import MARKER, USUAL, Variant, personalise, variant_in
from mrclab.linux.errors import InputError
from mrclab.linux.system import is_root

_IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc")


def start(lab: Lab, folder: Path, variant: Variant = USUAL) -> list[str]:
    """Copy a lab's skeleton and its README into a new folder; return the names of the files.

    Raise InputError if something is there already: a student's work is never written over.
    """
    return _copied(lab, "start", folder, variant)


def solution(lab: Lab, folder: Path) -> list[str]:
    """Copy a lab's solution into a new folder; return the names of the files.

    Raise InputError as `start`, and if there are no solutions here: students install none.
    """
    return _copied(lab, "solution", folder, USUAL)


def _copied(lab: Lab, part: str, folder: Path, variant: Variant) -> list[str]:
    if folder.exists():
        raise InputError(f"{folder} is there already: remove it, or name another folder")
    source = folder_of(lab)
    extra = None if part == "start" else part_of(lab, part)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source / "start", folder, ignore=_IGNORED)
        if extra is not None:
            shutil.copytree(extra, folder, ignore=_IGNORED, dirs_exist_ok=True)
        shutil.copy(source / "README.md", folder / "README.md")
        lines = [lab.folder, *filter(None, [variant.student])]
        (folder / MARKER).write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
        personalise(lab.number, folder, variant)
    except OSError as error:
        raise InputError(f"cannot make {folder}: {error.strerror or error}") from None
    _hand_over(folder)
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def work_folder(lab: Lab, given: str | None, here: Path) -> Path:
    """Return the folder with a student's work: the given one, ``here``, or the usual one below.

    Raise InputError if there is none, or it belongs to another lab.
    """
    if given is not None:
        folder = Path(given)
    else:
        folder = here if (here / MARKER).is_file() else here / lab.student_folder
    if not folder.is_dir():
        raise InputError(f"no folder {folder}: 'mrclab lab start {lab.number}' makes it")
    marker = folder / MARKER
    try:
        belongs = files.read(marker, 200).decode("utf-8", errors="replace").partition("\n")[0].strip()
    except FileNotFoundError:
        belongs = lab.folder
    except OSError as error:
        raise InputError(f"cannot read {marker}: {error.strerror or error}") from None
    if belongs != lab.folder:
        raise InputError(f"{folder} is the folder of lab {belongs}, not of {lab.folder}")
    return folder


def pack(
    lab: Lab, folder: Path, out: Path, outcomes: Sequence[Outcome], when: str, version: str
) -> dict[str, object]:
    """Write a hand-in: a zip file with the student's files and ``result.json``; return the latter's content.

    Packed are the lab's files and whatever else of up to 5 MB lies in the folder itself. Raise InputError
    if one of the lab's files is missing, or a link is among the files: with root's rights it could lead to
    any file of the machine.
    """
    missing = [name for name in lab.spec.files if not os.path.lexists(folder / name)]
    if missing:
        raise InputError(f"{folder} has no {missing[0]}, which is to be handed in")
    if out.is_symlink():
        raise InputError(f"{out} is a link: remove it, or name another file")
    own = {path.name for path in folder.iterdir() if _is_work(path)}
    names = sorted({*lab.spec.files, *own})
    try:
        contents = {name: files.read(folder / name) for name in names}
    except OSError as error:
        raise InputError(f"cannot read {error.filename}: {error.strerror or error}") from None
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    result = document(lab, outcomes, sums, when, version, variant_in(folder).student)
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
        (path.is_symlink() or path.is_file())
        and path.suffix not in (".pyc", ".zip")
        and path.name not in names
        and path.lstat().st_size <= files.LARGEST_BYTES
    )
