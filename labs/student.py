"""A student's folder: make it, draw the variant from the student's number, and pack the hand-in.

``mrclab lab start N --student ID`` writes the number into the folder, and the variant into ``yours.md`` and
the skeleton. Checks draw the same values again. Without a number, all values are those of the lab's page.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import unicodedata
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mrclab.labs.catalogue import Lab, Outcome, all_labs, document, folder_of, part_of
from mrclab.labs.sandbox import files
from mrclab.linux.errors import InputError
from mrclab.linux.system import is_root
from mrclab.topologies import Path as FabricPath
from mrclab.topologies import load_fabric

T = TypeVar("T")
MARKER = ".mrclab-lab"
"""The file that names the lab of a folder. A second line may have the student's number."""
_STUDENT = re.compile(r"[^\W_][\w.@+-]{0,63}")
_SEEDS = range(1_000, 1_000_000)
_TINY = "tiny"


def student_number(text: str) -> str:
    """Return a student's number in small letters. Raise InputError if the number is not valid.

    A letter with an accent may be one character or two (on macOS): both give the same number.
    """
    found = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text.strip()).casefold())
    if not _STUDENT.fullmatch(found):
        raise InputError(
            f"--student: '{text}' is no student's number: up to 64 letters, digits and any of . _ @ + -"
        )
    return found


@dataclass(frozen=True)
class Variant:
    """The values of one student. If ``student`` is "", they are the values of the lab's page."""

    student: str = ""

    def choose(self, what: str, usual: T, choices: Sequence[T]) -> T:
        """Draw one of ``choices`` for this student and this ``what``. Without a student, return ``usual``."""
        if not self.student:
            return usual
        digest = hashlib.sha256(f"{what} {self.student}".encode()).digest()
        return choices[int.from_bytes(digest[:8]) % len(choices)]

    def seed(self, what: str, usual: int) -> int:
        """Return the student's seed for ``what``. Without a student, return ``usual``."""
        return self.choose(f"seed of {what}", usual, _SEEDS)


USUAL = Variant()
"""The variant with the values of the lab's page."""


def variant_in(folder: Path) -> Variant:
    """Return the variant of a student's folder, or `USUAL` if the folder has no valid number."""
    try:
        lines = files.read(folder / MARKER, 400).decode("utf-8", errors="replace").splitlines()
        return Variant(student_number(lines[1]))
    except (OSError, InputError, IndexError):
        return USUAL


@dataclass(frozen=True)
class Route:
    """A path between the two racks of the lab's fabric: hosts, plane, and the number of the T1."""

    src: str
    dst: str
    plane: int
    t1: int

    def __str__(self) -> str:
        return f"from {self.src} to {self.dst} in plane {self.plane}, over T1 number {self.t1}"

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of all nodes on the path, including the hosts."""
        plane = self.plane
        return (self.src, f"p{plane}-t0-0", f"p{plane}-t1-{self.t1}", f"p{plane}-t0-1", self.dst)

    def path(self) -> FabricPath:
        """Return this path as a path of the fabric."""
        paths = load_fabric(_TINY).paths(self.src, self.dst)
        return next(path for path in paths if {*self.nodes[1:-1]} <= {*path.nodes})


_ROUTES = tuple(
    Route(src, dst, plane, t1)
    for src in ("h0", "h1")
    for dst in ("h2", "h3")
    for plane in (0, 1)
    for t1 in (0, 1)
    if (src, dst, plane) != ("h0", "h2", 0)  # this path is the example of the lab's page
)


def followed_route(variant: Variant) -> Route:
    """Return the path that the student has to follow hop by hop (lab 1)."""
    return variant.choose("followed", Route("h1", "h3", 1, 1), _ROUTES)


def packet_route(variant: Variant) -> Route:
    """Return the path of the packet that the student has to make (lab 1): never `followed_route`."""
    choices = [route for route in _ROUTES if route != followed_route(variant)]
    return variant.choose("packet", Route("h0", "h3", 1, 1), choices)


def dead_plane(variant: Variant) -> str:
    """Return the plane that fails (lab 7)."""
    return variant.choose("plane", "p1", ("p0", "p1", "p2", "p3"))


def dead_port(variant: Variant) -> str:
    """Return the NIC port that fails (lab 7)."""
    return variant.choose("port", "h1-eth1", tuple(f"h{h}-eth{p}" for h in range(4) for p in range(4)))


def wanted_nics(variant: Variant) -> int:
    """Return the number of NICs for which a design must have room (lab 8)."""
    return variant.choose("nics", 50_000, range(40_000, 60_001, 500))


@dataclass(frozen=True)
class Mine:
    """A variant of a lab: the text for the student, and the changed lines of the skeleton, old and new."""

    page: str
    changes: Mapping[str, Sequence[tuple[str, str]]]


def _look_around(variant: Variant) -> Mine:
    followed, packet, page = followed_route(variant), packet_route(variant), followed_route(USUAL)
    names = [(f"sent_by_{page.src}", f"sent_by_{followed.src}")]
    names += [
        (f"behind_{old.replace('-', '_')}:", f"behind_{new.replace('-', '_')}:")
        for old, new in zip(page.nodes[1:-1], followed.nodes[1:-1], strict=True)
    ]
    text = [
        (f"A packet {page}", f"A packet {followed}"),
        *names,
        *(
            (f"as {old} sends", f"as {new} sends")
            for old, new in zip(page.nodes, followed.nodes, strict=True)
        ),
        (f"as {page.dst} receives", f"as {followed.dst} receives"),
    ]
    return Mine(
        f"Step 3: follow a packet {followed}, and fill in its addresses in answers.yaml.\n\n"
        f"Step 4: make a packet {packet}, and save it as packet.pcap.",
        {"answers.yaml": text},
    )


def _kill_links(variant: Variant) -> Mine:
    seed = variant.seed("cuts", 4)
    return Mine(
        f"Your cuts.yaml has the seed {seed}. Leave it as it is: the numbers of your run depend on it.",
        {"cuts.yaml": [("seed: 4", f"seed: {seed}")]},
    )


def _all_reduce(variant: Variant) -> Mine:
    plane, port = dead_plane(variant), dead_port(variant)
    seeds = variant.seed("plane", 1), variant.seed("port", 2)
    return Mine(
        f"In your plane.yaml the plane {plane} dies, and in your port.yaml the port {port}; both have seeds "
        "of your own. Leave them as they are: your numbers differ a little from those of the page.",
        {
            "plane.yaml": [("where: p1,", f"where: {plane},"), ("seed: 1", f"seed: {seeds[0]}")],
            "port.yaml": [("where: h1-eth1,", f"where: {port},"), ("seed: 2", f"seed: {seeds[1]}")],
        },
    )


def _design(variant: Variant) -> Mine:
    nics = f"{wanted_nics(variant):,}"
    return Mine(
        f"Your fabric needs room for {nics} NICs instead of 50,000. "
        f"The numbers in choice.yaml are for {nics} NICs.",
        {"choice.yaml": [("For 50,000 NICs", f"For {nics} NICs")]},
    )


_MINE = {1: _look_around, 6: _kill_links, 7: _all_reduce, 8: _design}
PAGE = "yours.md"


def skeleton_text(lab: int, name: str, variant: Variant) -> str:
    """Return a file of a lab's skeleton with the changes of a student's variant."""
    found = next(one for one in all_labs() if one.number == lab)
    text = (folder_of(found) / "start" / name).read_text(encoding="utf-8")
    return _changed(text, _MINE[lab](variant).changes[name])


def _changed(text: str, changes: Sequence[tuple[str, str]]) -> str:
    """Make all replacements at once, so that no new text is replaced again."""
    for number, (old, _) in enumerate(changes):
        text = text.replace(old, f"\0{number}\0")
    for number, (_, new) in enumerate(changes):
        text = text.replace(f"\0{number}\0", new)
    return text


def personalise(lab: int, folder: Path, variant: Variant) -> bool:
    """Write a student's variant of a lab into a new folder. Return whether the lab has variants.

    In a lab without variants, students write programs. The checks run these programs with values that
    students do not know, so a copied result does not pass.
    """
    made = _MINE.get(lab)
    if made is None or not variant.student:
        return False
    mine = made(variant)
    for name, changes in mine.changes.items():
        path = folder / name
        text = _changed(path.read_text(encoding="utf-8"), changes)
        path.write_text(text, encoding="utf-8", newline="\n")
    page = f"# Your values, {variant.student}\n\nThey take the place of those in README.md.\n\n{mine.page}\n"
    (folder / PAGE).write_text(page, encoding="utf-8", newline="\n")
    return True


_IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc")


def start(lab: Lab, folder: Path, variant: Variant = USUAL) -> list[str]:
    """Copy a lab's skeleton and its README into a new folder; return the names of the files.

    Raise InputError if the folder already exists: a student's work is never written over.
    """
    return _copied(lab, "start", folder, variant)


def solution(lab: Lab, folder: Path) -> list[str]:
    """Copy a lab's solution into a new folder; return the names of the files.

    Raise InputError as `start` does, or if no solutions are installed: students do not have them.
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
    """Return the folder with a student's work: the given folder, ``here``, or a folder in ``here``.

    Raise InputError if there is no such folder, or if it belongs to another lab.
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
    """Write a hand-in: a zip file with the student's files and ``result.json``. Return the result.

    The zip file has the lab's files and all other files of up to 5 MB directly in the folder. Raise
    InputError if a file of the lab is missing or if a file is a link. With root's rights, a link could lead
    to any file.
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
    """If root made files in another user's folder, make that user their owner.

    A student may run mrclab as root, with sudo or in a container.
    """
    owner = made.absolute().parent.stat()
    if not is_root() or owner.st_uid == 0:
        return
    with suppress(OSError):  # some file systems have no owners
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
