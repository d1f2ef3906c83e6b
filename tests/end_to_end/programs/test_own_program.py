"""A user's own switch program on a running fabric: the program forwards packets, or mrclab refuses it."""

from pathlib import Path

import pytest

from mrclab.controller.pipeline import shipped_pipeline
from tests.support.command import Mrclab

SHIPPED = shipped_pipeline()
BLOCK = "0xffffffff000000000000000000000000"
"""The mask of the locator block in the action `un`. Without the mask, the shift would destroy the block."""


def own(folder: Path, *, json: tuple[str, str] = ("", ""), p4info: tuple[str, str] = ("", "")) -> str:
    program = folder / "mine.json"
    program.write_text(SHIPPED.json.read_text().replace(*json))
    (folder / "mine.p4info.txtpb").write_text(SHIPPED.p4info.read_text().replace(*p4info))
    return str(program)


@pytest.mark.slow
@pytest.mark.root
def test_the_program_that_is_given_forwards(mrclab: Mrclab, machine: None, tmp_path: Path) -> None:
    wrong = own(tmp_path, json=(BLOCK, "0x0"))
    mrclab.ok("up", "--topology", "tiny", "--program", wrong)
    lost = mrclab("probe", "h0", "h2", "-n", "1")
    assert "0 of 1 back" in lost.stdout
    joined = mrclab("live", "--program", wrong)
    assert (joined.returncode, joined.stderr.count("\n")) == (2, 1)
    assert "leave out --program" in joined.stderr
    mrclab.ok("down")


@pytest.mark.slow
@pytest.mark.root
def test_a_program_that_lacks_a_table_is_refused_before_anything_is_up(
    mrclab: Mrclab, machine: None, tmp_path: Path
) -> None:
    program = own(tmp_path, p4info=('alias: "marking"', 'alias: "ecn"'))
    out = tmp_path / "out"
    for words in (
        ("up", "--topology", "tiny"),
        ("live", "--topology", "tiny", "--port", "0"),
        ("run", "link-kill", "--topology", "tiny", "--out", str(out)),
    ):
        refused = mrclab(*words, "--program", program)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
        assert "mine.json: the controller uses what this program lacks: table marking" in refused.stderr
    assert not out.exists()
