"""``mrclab scale``: its tables, its page, its error messages."""

import json
import re
from pathlib import Path

import pytest

from mrclab.cli import main
from mrclab.scale.parts import parse_parts


def run(*words: str) -> int:
    try:
        return main(["scale", *words])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1


@pytest.mark.slow
def test_everything_at_a_small_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--nics", "2048", "--job", "1000", "--runs", "2", "--days", "5", "--dead-links", "0,10,9999999")
    assert run(*words, "--out", str(tmp_path)) == 0
    out = capsys.readouterr().out
    for title in (
        "Fabrics",
        "Claims",
        "Blast radius",
        "A synchronous job",
        "Figures 4, 6, 7",
        "What flows get",
    ):
        assert title in out
    assert all(len(line) <= 80 for line in out.splitlines() if "report.html" not in line)
    found = json.loads((tmp_path / "scale.json").read_text())
    assert found["schema"] == "mrclab.scale/1"
    assert found["fabrics"][0]["nics"] == 2048
    assert len(found["studies"][0]["goodput"]) == 2
    assert {row["dead"] for row in found["shares"]} == {0, 10}
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 7
    assert "prefers-color-scheme: dark" in page
    assert "currentColor" in page
    assert not re.search(r'(src|href)="(?!data:|#)', page)


@pytest.mark.slow
def test_a_part_alone_and_the_same_twice(tmp_path: Path) -> None:
    words = ("--only", "failures", "--job", "1000", "--runs", "2", "--days", "3", "--seed", "7")
    for name in ("a", "b"):
        assert run(*words, "--out", str(tmp_path / name)) == 0
    a, b = ((tmp_path / name / "scale.json").read_text() for name in ("a", "b"))
    assert a == b
    assert [table["name"] for table in json.loads(a)["tables"]] == [
        "job",
        "failures-MRC",
        "failures-conventional",
    ]


def test_the_table_of_parts_is_printed_and_read_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--print-parts") == 0
    assert parse_parts(capsys.readouterr().out, "printed").name == "typical"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--nics", "0"], "--nics: it must be at least 1"),
        (["--planes", "17"], "planes must be from 1 to 16"),
        (["--nics", "200000", "--tiers", "2"], "room for 131,072 NICs, not 200,000"),
        (["--nics", "2000000000"], "take more planes"),
        (["--parts", "none"], "no table of parts 'none': give a file or one of typical"),
        (["--only", "cost"], "no part 'cost'"),
        (["--dead-links", "few"], "must be whole numbers"),
        (["--days", "0"], "--days"),
        (["--runs", "1000000"], "--runs"),
        (["--seed", "-1"], "--seed"),
        (["--job", "20000000000"], "take more planes"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*words) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
