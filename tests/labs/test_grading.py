"""Grading a class: names, points, missing and late hand-ins, and similar hand-ins."""

from __future__ import annotations

import csv
import io
import json
import shutil
import time
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mrclab import cli
from mrclab.labs import student
from mrclab.labs.catalogue import Outcome, find, folder_of
from mrclab.labs.grading import handins, tables
from mrclab.labs.grading.grade import Graded, closest, fingerprint, grade
from mrclab.labs.grading.handins import HandIn, Person
from mrclab.linux.errors import InputError

DESIGN = find("8")


def packed(folder: Path, out: Path, when: str = "2030-01-01T10:00:00+00:00") -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    student.pack(DESIGN, folder, out, [Outcome("a", True)], when, "1.0")
    return out


def zipped(path: Path, files: dict[str, bytes]) -> HandIn:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return HandIn(Person("x"), path)


def test_names_come_from_the_platforms_folders(tmp_path: Path) -> None:
    for name in ("Ada Lovelace_4711_assignsubmission_file_", "submission_77", "grace"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lab-08-design.zip").write_bytes(b"")
    (tmp_path / "linus.zip").write_bytes(b"")
    (tmp_path / "stranger.zip").symlink_to("/etc/passwd")
    (tmp_path / "submission_metadata.yml").write_text(
        "submission_77:\n  :submitters:\n  - :name: Barbara L.\n"
    )
    found = handins.find(tmp_path, DESIGN)
    assert {(one.person.name, one.person.number) for one in found} == {
        ("Ada Lovelace", "4711"),
        ("Barbara L.", "77"),
        ("grace", ""),
        ("linus", ""),
    }
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no hand-ins"):
        handins.find(tmp_path / "empty", DESIGN)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"../../etc/x": b""}, "outside its folder"),
        ({"/etc/x": b""}, "outside its folder"),
        ({f"{n}.py": b"" for n in range(300)}, "more than 200 files"),
        ({"large.py": bytes(6_000_000)}, "MB unpacked"),
        ({f"{n}.bin": bytes(4_000_000) for n in range(9)}, "MB unpacked"),
    ],
)
def test_a_hostile_zip_is_refused_in_a_line(files: dict[str, bytes], reason: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=reason) as refused:
        handins.unpack(zipped(tmp_path / "x.zip", files), DESIGN, tmp_path / "out")
    assert "\n" not in str(refused.value)


def test_a_damaged_zip_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"PK\3\4" + bytes(100))
    with pytest.raises(InputError, match="no zip file"):
        handins.unpack(HandIn(Person("x"), tmp_path / "x.zip"), DESIGN, tmp_path / "out")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_a_zip_with_damaged_data_is_refused_in_a_line(method: int, tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("fabric.py", "radix = 1\n" * 300)
    data = bytearray(path.read_bytes())
    data[48:60] = b"\xff" * 12
    path.write_bytes(data)
    with pytest.raises(InputError, match="no zip file"):
        handins.unpack(HandIn(Person("x"), path), DESIGN, tmp_path / "out")


def test_the_labs_files_are_found_at_any_depth(tmp_path: Path) -> None:
    files = {"a/b/fabric.py": b"", "a/b/choice.yaml": b"", "a/other.txt": b""}
    work = handins.unpack(zipped(tmp_path / "x.zip", files), DESIGN, tmp_path / "out")
    assert work == tmp_path / "out" / "all" / "a" / "b"


def test_a_link_in_a_zip_is_a_text_and_no_link(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("fabric.py")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(link, "/etc/shadow")
    work = handins.unpack(HandIn(Person("x"), tmp_path / "x.zip"), DESIGN, tmp_path / "out")
    assert not (work / "fabric.py").is_symlink()


def test_who_is_missing_is_known_by_name_or_number(tmp_path: Path) -> None:
    (tmp_path / "roster.csv").write_text(
        "Identifier,Full name\nParticipant 4711,Ada Lovelace\nParticipant 12,Alan T.\n"
    )
    roster = handins.read_roster(tmp_path / "roster.csv")
    found = [HandIn(Person("A. Lovelace", "4711"), tmp_path)]
    assert handins.missing(roster, found) == [Person("Alan T.", "12")]
    (tmp_path / "roster.txt").write_text("ada\ngrace\n")
    roster = handins.read_roster(tmp_path / "roster.txt")
    assert handins.missing(roster, [HandIn(Person("Ada"), tmp_path)]) == [Person("grace", student="grace")]


def test_a_name_is_the_same_in_every_form_of_unicode(tmp_path: Path) -> None:
    (tmp_path / "roster.csv").write_text("Name,SID\nZo\u00eb,12\n", encoding="utf-8")
    roster = handins.read_roster(tmp_path / "roster.csv")
    found = [HandIn(Person("Zoe\u0308"), tmp_path)]
    assert handins.missing(roster, found) == []
    assert handins.with_students(roster, found)[0].person.student == "12"


@pytest.mark.parametrize(
    ("text", "people"),
    [
        ("Lovelace, Ada\nTuring, Alan\n", [("Lovelace, Ada", ""), ("Turing, Alan", "")]),
        ("First Name,Last Name,SID\nAda,Lovelace,12\n", [("Ada Lovelace", "12")]),
        ("First name,Surname,ID number\nAda,Lovelace,12\n", [("Ada Lovelace", "12")]),
        ('Full name;ID number\n"Lovelace; Ada";12\n', [("Lovelace; Ada", "12")]),
    ],
)
def test_a_roster_has_names_in_several_forms(
    text: str, people: list[tuple[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "roster").write_text(text)
    roster = handins.read_roster(tmp_path / "roster")
    assert [(person.name, person.number) for person in roster] == people


def test_code_that_takes_long_to_read_is_cut() -> None:
    began = time.process_time()
    fingerprint(["'" + "\\'" * 8_000, "'''" + "a\n" * 500_000])
    assert time.process_time() - began < 2


def test_renamed_code_is_alike_and_a_solution_of_ones_own_is_not() -> None:
    skeleton = "def f(a):\n    return None\n"
    own = "def g(values):\n    total = 0\n    for v in values:\n        total += v * 2\n    return total\n"
    mine = skeleton + own + "    # end\n"
    renamed = mine.replace("values", "xs").replace("total", "s").replace("2", "3") + "# mine\n"
    other = skeleton + "def g(values):\n    return sum(map(lambda v: v + v, values), 0) * (1 / 7)\n"
    prints = {name: fingerprint([text]) for name, text in (("a", mine), ("b", renamed), ("c", other))}
    found = closest(prints, fingerprint([skeleton]))
    assert found["a"] == ("b", 1.0)
    assert found["c"][1] < 0.3
    assert closest({"a": fingerprint([skeleton])}, fingerprint([skeleton])) == {"a": ("", 0.0)}


def test_no_cell_is_a_formula() -> None:
    one = Graded(Person("=cmd|'/c calc'!A1"), (Outcome("x", False, '<script>alert(1)</script>, "quoted"'),))
    for table in (tables.plain(DESIGN, [one]), tables.moodle([one]), tables.answers([one], {})):
        rows = list(csv.reader(io.StringIO(table)))
        assert len({len(row) for row in rows}) == 1
        assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "@"))]


def test_a_name_that_is_no_utf_8_loses_no_table() -> None:
    one = Graded(Person("M\udcfcller"), (Outcome("x", False, "\ud800"),), note="\udcfc")
    for table in (tables.plain(DESIGN, [one]), tables.moodle([one])):
        assert "M?ller" in table
        table.encode("utf-8")


def test_an_answer_is_that_of_the_work_and_of_no_folder_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "class" / "ada"
    (folder / "old").mkdir(parents=True)
    for name, answer in (("answers.md", "the last one"), ("old/answers.md", "a draft")):
        (folder / name).write_text(f"# Lab\n\n## 1. Why?\n\n{answer}\n")
    (folder / "choice.yaml").touch()
    [one] = grade(DESIGN, handins.find(tmp_path / "class", DESIGN), None, 1, lambda done: None)
    assert one.answers == {"1": "the last one"}


def test_late_is_later_than_due(tmp_path: Path) -> None:
    student.start(DESIGN, tmp_path / "mine")
    (tmp_path / "mine" / "result.json").write_text('{"time": "2030-01-01T10:00:00+01:00"}')
    assert handins.claimed_time(tmp_path / "mine") == datetime(2030, 1, 1, 9, tzinfo=UTC)
    for broken in ("{", "[]", '{"time": 5}', "[" * 100_000):
        (tmp_path / "mine" / "result.json").write_text(broken)
        assert handins.claimed_time(tmp_path / "mine") is None


@pytest.mark.slow
def test_a_class_is_graded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    student.solution(DESIGN, tmp_path / "good")
    student.start(DESIGN, tmp_path / "bad")
    (tmp_path / "bad" / "fabric.py").write_text("print('<b>' * 1000)\nimport os\nos._exit(0)\n")
    packed(tmp_path / "good", Path("class/Ada Lovelace_4711_assignsubmission_file_/lab-08-design.zip"))
    packed(tmp_path / "good", Path("class/copy.zip"), "2030-01-02T10:00:00+00:00")
    packed(tmp_path / "bad", Path("class/bad.zip"))
    Path("class/broken.zip").write_bytes(b"no zip")
    Path("roster").write_text("Ada Lovelace\ncopy\nbad\nbroken\nnobody\n")
    words = ["lab", "grade", "8", "class", "--roster", "roster", "--due", "2030-01-02T00:00Z", "--jobs", "2"]
    assert cli.main([*words, "--csv", "marks.csv", "--answers", "answers.csv", "--gradescope", "gs"]) == 0
    assert "4 hand-ins, 1 missing, 1 late, 2 much like another one" in capsys.readouterr().err
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(Path("marks.csv").read_text()))}
    assert {name: (row["points"], row["late"]) for name, row in rows.items()} == {
        "Ada Lovelace": ("100.0", ""),
        "copy": ("100.0", "late"),
        "bad": ("0.0", ""),
        "broken": ("0.0", ""),
        "nobody": ("0.0", ""),
    }
    assert rows["copy"]["same files as"] == "Ada Lovelace"
    assert "no zip file" in rows["broken"]["note"]
    assert rows["nobody"]["note"] == "missing"
    assert json.loads(Path("gs/4711.json").read_text())["score"] == 100
    answers = list(csv.DictReader(io.StringIO(Path("answers.csv").read_text())))
    first = next(row for row in answers if row["question"] == "1")
    assert first["name"] == "Ada Lovelace"
    assert (first["points"], first["of"]) == ("", "2")
    assert "2,048 with one plane" in first["a point each for"]
    shutil.rmtree("class/copy.zip", ignore_errors=True)
    assert folder_of(DESIGN).is_dir()
    assert cli.main(["lab", "grade", "8", "nowhere"]) == 2
    assert cli.main([*words[:4], "--due", "soon"]) == 2
