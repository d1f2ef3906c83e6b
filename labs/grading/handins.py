"""Hand-ins as learning platforms export them: find their authors, and unpack a limited amount of files."""

from __future__ import annotations

import csv
import io
import json
import lzma
import re
import unicodedata
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

import yaml

from mrclab.labs.catalogue import Lab
from mrclab.labs.sandbox import files
from mrclab.labs.student import student_number
from mrclab.linux.errors import InputError

_MOODLE = re.compile(r"(?P<name>.+)_(?P<id>\d+)_assignsubmission_file(_.*)?")
_GRADESCOPE = re.compile(r"submission_(?P<id>\d+)")
_MOST_FILES = 200
_MOST_BYTES = 30_000_000
_LARGEST_ZIP_BYTES = 50_000_000
_BROKEN_ZIP = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError),
    *(RuntimeError, NotImplementedError, ValueError),
)


@dataclass(frozen=True)
class Person:
    """A person who takes the course.

    ``number`` is the number that the learning platform gives the person, or "" if there is none.
    ``student`` is the number from which the labs' variants are drawn, or "" if it is not known.
    """

    name: str
    number: str = ""
    student: str = ""


@dataclass(frozen=True)
class HandIn:
    """The submission of a person: a zip file, or a folder with the files."""

    person: Person
    source: Path


def find(folder: Path, lab: Lab) -> list[HandIn]:
    """Return the hand-ins in a folder, by name.

    Entries of the folder are zip files or folders with students' names: ``ada.zip``, ``ada/``, Moodle's form
    (``Ada Lovelace_4711_assignsubmission_file_``), or Gradescope's (``submission_4711``, with names in
    ``submission_metadata.yml``). Raise InputError if the folder has no hand-ins.
    """
    if not folder.is_dir():
        raise InputError(f"no folder {folder}")
    names = _gradescope_names(folder / "submission_metadata.yml")
    found = []
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or path.name.startswith("."):
            continue
        if path.is_dir():
            zips = [inner for inner in files.regular(path) if inner.suffix.lower() == ".zip"]
            sources = [*(inner for inner in zips if lab.student_folder in inner.name), *zips, path]
            found.append(HandIn(_person(path.name, names), sources[0]))
        elif path.suffix.lower() == ".zip":
            found.append(HandIn(_person(path.stem, names), path))
    if not found:
        raise InputError(f"{folder} has no hand-ins: zip files or folders that are called after students")
    return found


def _person(entry: str, names: dict[str, str]) -> Person:
    moodle, gradescope = _MOODLE.fullmatch(entry), _GRADESCOPE.fullmatch(entry)
    if moodle:
        return Person(moodle["name"], moodle["id"])
    if gradescope:
        return Person(names.get(entry, entry), gradescope["id"])
    return Person(entry)


def _gradescope_names(path: Path) -> dict[str, str]:
    try:
        known = yaml.safe_load(files.read(path))
    except FileNotFoundError:
        return {}
    except (OSError, yaml.YAMLError, RecursionError) as error:
        raise InputError(f"cannot be read: {type(error).__name__}", where=str(path)) from None
    found = {}
    for entry, about in known.items() if isinstance(known, dict) else ():
        people = about.get(":submitters") if isinstance(about, dict) else None
        if isinstance(people, list):
            found[str(entry)] = ", ".join(str(one.get(":name")) for one in people if isinstance(one, dict))
    return found


_NAMES = (("full name",), ("name",), ("first name", "last name"), ("first name", "surname"))
"""The columns of a roster that have the name."""


def read_roster(path: Path) -> list[Person]:
    """Return the people in a list: a text file with a name in each line, or a platform's CSV file.

    The CSV file comes from Moodle or Gradescope. Each value is in the first of these columns that exists:

    * name: "Full name", "Name", or "First name" and "Last name" (or "Surname")
    * number that the platform gives the person: "Identifier", "ID number" or "SID"
    * student's number: "Student", "ID number" or "SID"

    So both numbers may come from one column, "ID number" or "SID". Columns are separated by commas or by
    semicolons. In a text file, the name is also the student's number.
    """
    try:
        text = files.read(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from None
    first = text.partition("\n")[0]
    delimiter = ";" if first.count(";") > first.count(",") else ","
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    head = [cell.strip().lower() for cell in rows[0]] if rows else []
    names = next((words for words in _NAMES if {*words} <= {*head}), None)
    if names is None:
        listed = [line.strip() for line in text.splitlines()]
        return [Person(name, student=name) for name in listed if name]
    columns = [head.index(word) for word in names]
    number = next((head.index(word) for word in ("identifier", "id number", "sid") if word in head), None)
    student = next((head.index(word) for word in ("student", "id number", "sid") if word in head), None)
    return [
        Person(
            " ".join(row[column].strip() for column in columns),
            "" if number is None else re.sub(r"\D", "", row[number]),
            "" if student is None else row[student].strip(),
        )
        for row in rows[1:]
        if len(row) > max(*columns, number or 0, student or 0)
    ]


def _key(name: str) -> str:
    """Return a name for comparison. macOS writes a letter with an accent as two characters."""
    return unicodedata.normalize("NFC", name).casefold()


def with_students(roster: Sequence[Person], found: Sequence[HandIn]) -> list[HandIn]:
    """Return the hand-ins with the students' numbers from a roster.

    People are found by their name or by their number on the learning platform. Raise InputError if a person
    is missing from the roster or has no valid student's number there.
    """
    by_key = {_key(person.name): person for person in roster}
    by_key |= {f"#{person.number}": person for person in roster if person.number}
    known = []
    for hand_in in found:
        person = hand_in.person
        listed = by_key.get(f"#{person.number}") or by_key.get(_key(person.name))
        if listed is None or not listed.student:
            raise InputError(f"--variants: the roster has no student's number of {person.name}")
        known.append(replace(hand_in, person=replace(person, student=student_number(listed.student))))
    return known


def unpack(hand_in: HandIn, lab: Lab, target: Path) -> Path:
    """Write the files of a hand-in below a folder. Return the folder that has the lab's files.

    Raise InputError if a zip file is damaged or has too many files or bytes.
    """
    target.mkdir(parents=True)
    if hand_in.source.is_dir():
        files.copy_folder(hand_in.source, target / "all")
    else:
        _extract(hand_in.source, target / "all")
    return _work(target / "all", lab)


def _extract(source: Path, target: Path) -> None:
    if source.stat().st_size > _LARGEST_ZIP_BYTES:
        raise InputError(f"larger than {_LARGEST_ZIP_BYTES / 1e6:g} MB", where=str(source))
    target.mkdir()
    total = 0
    try:
        with zipfile.ZipFile(source) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            if len(members) > _MOST_FILES:
                raise InputError(f"more than {_MOST_FILES} files", where=str(source))
            for member in members:
                name = PurePosixPath(member.filename.replace("\\", "/"))
                if name.is_absolute() or ".." in name.parts or ":" in member.filename:
                    raise InputError(f"has a file {member.filename!r} outside its folder", where=str(source))
                with archive.open(member) as file:
                    content = file.read(files.LARGEST_BYTES + 1)
                total += len(content)
                if len(content) > files.LARGEST_BYTES or total > _MOST_BYTES:
                    raise InputError(f"more than {_MOST_BYTES / 1e6:g} MB unpacked", where=str(source))
                path = target / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
    except _BROKEN_ZIP as error:
        raise InputError(f"no zip file that can be read: {error}", where=str(source)) from None


def _work(folder: Path, lab: Lab) -> Path:
    """Return the folder that has the largest number of the lab's files: ``folder`` or a folder below it."""
    wanted = set(lab.spec.files)
    folders = [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]
    return max(folders, key=lambda here: len(wanted & {path.name for path in here.iterdir()}))


def claimed_time(folder: Path) -> datetime | None:
    """Return the time in a hand-in's ``result.json``, or None. A student can change this time."""
    try:
        found = json.loads(files.read(folder / "result.json"))
        time = datetime.fromisoformat(found["time"])
    except (OSError, InputError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def missing(roster: Sequence[Person], found: Sequence[HandIn]) -> list[Person]:
    """Return the people of a list who have no hand-in. People are compared by name and by number."""
    numbers = {hand_in.person.number for hand_in in found if hand_in.person.number}
    names = {_key(hand_in.person.name) for hand_in in found}
    return [
        person
        for person in roster
        if _key(person.name) not in names and (not person.number or person.number not in numbers)
    ]
