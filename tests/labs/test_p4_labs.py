"""The labs on P4: without a compiler they say so at once, and what is compiled is what the sources say."""

from __future__ import annotations

from pathlib import Path

import pytest

from labs import p4
from labs.checks import Hint
from labs.forwarding import show
from labs.p4 import COMPILED, SOURCE, has_compiler
from p4src.compile import run_p4c
from tests.support.paths import ROOT

LAB = ROOT / "labs" / "02-p4-forward"
COMPILED_FOLDERS = sorted(path.parent for path in LAB.rglob(SOURCE))
VARIANTS = {
    "a": "mistakes/looks-before-it-shifts",
    "b": "solution",
    "c": "mistakes/hop-limit-stays",
    "d": "mistakes/block-moves",
    "e": "mistakes/forwards-what-is-not-its-own",
    "skeleton": "start",
}


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def test_every_variant_is_one_of_the_programs() -> None:
    found = {path.stem: path.read_bytes() for path in (LAB / "start" / "variants").glob("*.json")}
    assert found == {name: (LAB / folder / COMPILED).read_bytes() for name, folder in VARIANTS.items()}
    assert len(set(found.values())) == len(VARIANTS)


@pytest.mark.skipif(not has_compiler(), reason="p4c-bm2-ss is not on PATH")
@pytest.mark.parametrize("folder", COMPILED_FOLDERS, ids=lambda folder: folder.name)
def test_what_is_compiled_is_what_the_source_says(folder: Path, tmp_path: Path) -> None:
    made = tmp_path / COMPILED
    done = run_p4c(Path(SOURCE), made, tmp_path / "p4info.txtpb", cwd=folder)
    assert done.returncode == 0, done.stderr
    said, found = (path.read_text() for path in (folder / COMPILED, made))
    version = '"version"'
    assert said.partition(version)[2] == found.partition(version)[2]


def test_without_a_compiler_the_lab_says_so_and_takes_what_is_compiled(
    no_compiler: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert p4.main(LAB / "start") == 0
    said = capsys.readouterr().out
    assert "There is no p4c-bm2-ss here" in said
    assert "variants/" in said
    assert p4.main(tmp_path) == 1
    assert "There is no switch.json" in capsys.readouterr().out
    (tmp_path / COMPILED).write_text("{")
    with pytest.raises(Hint, match=r"switch\.json cannot be read"):
        p4.program_of(tmp_path)


def test_variants_are_told_apart_by_their_packets(no_compiler: None) -> None:
    shown = {name: show(LAB / "start" / "variants" / f"{name}.json") for name in VARIANTS}
    assert len(set(shown.values())) == len(VARIANTS)
    assert "hop limit 64 at the start, 61 at the end" in shown["b"]
    assert shown["b"].endswith("drops it")
