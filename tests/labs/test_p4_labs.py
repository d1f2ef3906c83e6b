"""The labs on P4: without a compiler they say so at once, and what is compiled is what the sources say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mrclab.labs import p4
from mrclab.labs.checks import Hint
from mrclab.labs.p4 import COMPILED, SOURCE
from mrclab.labs.switching import forwarding, queueing
from mrclab.p4src.compile import has_compiler, run_p4c
from tests.support.paths import ROOT

FORWARD, QUEUES = ROOT / "labs" / "02-p4-forward", ROOT / "labs" / "03-p4-queues"
LABS = (FORWARD, QUEUES)
SOURCES = sorted(path.parent for lab in LABS for path in lab.rglob(SOURCE))
VARIANTS = {
    FORWARD: {
        "a": "mistakes/looks-before-it-shifts",
        "b": "solution",
        "c": "mistakes/hop-limit-stays",
        "d": "mistakes/block-moves",
        "e": "mistakes/forwards-what-is-not-its-own",
        "skeleton": "start",
    },
    QUEUES: {
        "a": "mistakes/length-stays",
        "b": "mistakes/queues-what-was-cut",
        "c": "mistakes/marks-by-a-step",
        "d": "mistakes/drops-take-room",
        "e": "solution",
        "f": "mistakes/marks-who-does-not-know",
        "skeleton": "start",
    },
}
SHOWN: dict[Path, Callable[[Path], str]] = {FORWARD: forwarding.show, QUEUES: queueing.show}


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_every_variant_is_one_of_the_programs(lab: Path) -> None:
    found = {path.stem: path.read_bytes() for path in (lab / "start" / "variants").glob("*.json")}
    assert found == {name: (lab / folder / COMPILED).read_bytes() for name, folder in VARIANTS[lab].items()}
    assert len(set(found.values())) == len(VARIANTS[lab])


@pytest.mark.skipif(not has_compiler(), reason="p4c-bm2-ss is not on PATH")
@pytest.mark.parametrize("folder", SOURCES, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_what_is_compiled_is_what_the_source_says(folder: Path, tmp_path: Path) -> None:
    made = tmp_path / COMPILED
    done = run_p4c(Path(SOURCE), made, tmp_path / "p4info.txtpb", cwd=folder)
    assert done.returncode == 0, done.stderr
    version = '"version"'
    said, found = (path.read_text().partition(version)[2] for path in (folder / COMPILED, made))
    assert said == found


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_without_a_compiler_a_lab_says_so_and_takes_what_is_compiled(
    lab: Path, no_compiler: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert p4.main(lab / "start") == 0
    said = capsys.readouterr().out
    assert "There is no p4c-bm2-ss here" in said
    assert "variants/" in said
    assert p4.main(tmp_path) == 1
    assert "There is no switch.json" in capsys.readouterr().out
    (tmp_path / COMPILED).write_text("{")
    with pytest.raises(Hint, match=r"switch\.json cannot be read"):
        p4.program_of(tmp_path)


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_variants_are_told_apart_by_their_packets(lab: Path, no_compiler: None) -> None:
    shown = {name: SHOWN[lab](lab / "start" / "variants" / f"{name}.json") for name in VARIANTS[lab]}
    assert len(set(shown.values())) == len(VARIANTS[lab])


def test_a_packet_of_the_right_program_takes_three_hops(no_compiler: None) -> None:
    shown = forwarding.show(FORWARD / "start" / "variants" / "b.json")
    assert "hop limit 64 at the start, 61 at the end" in shown
    assert shown.endswith("drops it")
