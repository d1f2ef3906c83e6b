"""Without a compiler, the labs on P4 print a notice. Their compiled files match the sources."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mrclab.labs import p4
from mrclab.labs.checks import Hint
from mrclab.labs.p4 import COMPILED, SOURCE
from mrclab.labs.switching import forwarding, queueing
from mrclab.p4src.compile import has_compiler, run_p4c
from tests.labs.mistakes import Mistake, mistakes_of
from tests.support.paths import ROOT

FORWARD, QUEUES = ROOT / "labs" / "02-p4-forward", ROOT / "labs" / "03-p4-queues"
LABS = (FORWARD, QUEUES)
MISTAKES = [mistake for lab in LABS for mistake in mistakes_of(lab) if SOURCE in mistake.changes]
SHOWN: dict[Path, Callable[[Path], str]] = {FORWARD: forwarding.show, QUEUES: queueing.show}


def variants_of(lab: Path) -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in (lab / "start" / "variants").glob("*.json")}


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_every_variant_is_one_of_the_programs(lab: Path) -> None:
    found = variants_of(lab)
    of_mistakes = [str(mistake.variant) for mistake in MISTAKES if mistake.lab == lab]
    programs = {(lab / folder / COMPILED).read_bytes() for folder in ("start", "solution")}
    assert {found[name] for name in set(found) - set(of_mistakes)} == programs
    assert found["skeleton"] == (lab / "start" / COMPILED).read_bytes()
    assert len(set(found.values())) == len(found) == len(of_mistakes) + 2


def require_the_same(compiled: Path, folder: Path) -> None:
    """Compile the source in a folder. From the field "version" on, the result must equal ``compiled``."""
    done = run_p4c(Path(SOURCE), folder / "made.json", folder / "p4info.txtpb", cwd=folder)
    assert done.returncode == 0, done.stderr
    said, made = (path.read_text().partition('"version"')[2] for path in (compiled, folder / "made.json"))
    assert said == made


@pytest.mark.skipif(not has_compiler(), reason="p4c-bm2-ss is not on PATH")
@pytest.mark.parametrize("part", ["start", "solution"])
@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_what_is_compiled_is_what_the_source_says(lab: Path, part: str, tmp_path: Path) -> None:
    shutil.copy(lab / part / SOURCE, tmp_path)
    require_the_same(lab / part / COMPILED, tmp_path)


@pytest.mark.skipif(not has_compiler(), reason="p4c-bm2-ss is not on PATH")
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_compiled_mistake_is_what_its_source_says(mistake: Mistake, tmp_path: Path) -> None:
    mistake.write(tmp_path)
    require_the_same(tmp_path / COMPILED, tmp_path)


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
    paths = list((lab / "start" / "variants").glob("*.json"))
    assert len({SHOWN[lab](path) for path in paths}) == len(paths)


def test_a_packet_of_the_right_program_takes_three_hops(no_compiler: None) -> None:
    shown = forwarding.show(FORWARD / "start" / "variants" / "b.json")
    assert "hop limit 64 at the start, 61 at the end" in shown
    assert shown.endswith("drops it")


@pytest.mark.parametrize(
    "text",
    [
        '#include "/etc/passwd"',
        "#include <core.p4>\n  %: include </etc/passwd>",
        "#include_next <core.p4>",
        '#import "/etc/passwd"',
        '/**/ # /* * */ /* \n */ include "/etc/passwd"',
        '"/*"\n/* */ #import "/etc/passwd"',
        '#inc\\\nlude "/etc/passwd"',
        '#\\ \nim??/\nport "/etc/passwd"',
    ],
)
def test_a_program_reads_no_file_of_the_machine(text: str) -> None:
    assert p4.foreign_include(f"{text}\n") is not None


def test_the_labs_own_sources_include_what_is_allowed() -> None:
    sources = [path for lab in LABS for path in lab.rglob(SOURCE)]
    assert len(sources) >= 4
    assert {p4.foreign_include(path.read_text(encoding="utf-8")) for path in sources} == {None}
    assert p4.foreign_include("#" + "/**/" * 10_000 + "define X") is None
