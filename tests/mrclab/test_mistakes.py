"""A mistake at the command line gives one line that says how to correct it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mrclab.cli import main, missing_extra, parser
from mrclab.linux.errors import InputError
from mrclab.linux.system import is_linux
from mrclab.topologies import load_fabric, shipped_topologies
from mrclab.topologies.model import require_live
from mrclab.topologies.units import share

LIVE = ("lab", "thin", "tiny", "two-racks", "wide")


@pytest.mark.parametrize(
    ("words", "mend"),
    [
        ("runn", "did you mean run?"),
        ("run link-kil", "did you mean link-kill?"),
        ("run link-kill --topology tin --dry-run", "did you mean tiny?"),
        ("run link-kill --topology paper-c --target ebpf --dry-run", "1,280 links"),
        ("run link-kill --target sim --program x.p4", "--program"),
        ("soak link-kill", "use 'mrclab run'"),
        ("soak --duration 5", "'5 s'"),
        ("soak --duration -5s", "must be a time"),
        ("prune --keep -1", "0 or more"),
        ("report no-run no-run-either", "none of 2 directories has a result: no result in 'no-run'"),
        ("fault loss p0-t0-0:p0-t1-0 --ratio ten", "invalid share value: 'ten'"),
    ],
)
def test_a_mistake_is_one_line_with_the_mend(
    words: str, mend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(words.split())
    except SystemExit as end:
        code = end.code  # type: ignore[assignment]
    (line,) = capsys.readouterr().err.splitlines()
    assert code == InputError.exit_code
    assert line.startswith("mrclab: ")
    assert mend in line


@pytest.mark.skipif(not is_linux(), reason="other systems have other limits and no exercises")
@pytest.mark.parametrize(
    ("words", "mend"),
    [
        (["compare", "x" * 5000, "b"], "give a shorter one"),
        (["status", "--watch", "0"], "--watch: at least 0.05 s, not '0'"),
        (["exercise", "no\nsuch"], "no directory no such"),
        (["exercise", ".", "--topology", "deep.json"], "deep.json: not JSON"),
    ],
)
def test_strange_files_and_names_are_one_line_too(
    words: list[str],
    mend: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    assert main(words) == InputError.exit_code
    (line,) = capsys.readouterr().err.splitlines()
    assert mend in line


@pytest.mark.parametrize("name", shipped_topologies())
def test_live_targets_take_what_one_machine_carries(name: str) -> None:
    if name in LIVE:
        require_live(load_fabric(name))
    else:
        with pytest.raises(InputError, match="use --target sim"):
            require_live(load_fabric(name))


@pytest.mark.parametrize(("text", "value"), [("10%", 0.1), ("0.1", 0.1), (" 2.5 %", 0.025), ("1", 1.0)])
def test_a_share_may_be_percent(text: str, value: float) -> None:
    assert share(text) == pytest.approx(value)


def test_a_typo_is_answered_before_anything_heavy_is_imported() -> None:
    code = (
        "import sys; from mrclab.cli import main; main(['run', 'nope']); "
        "print(*{'numpy', 'pydantic', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_module_that_an_extra_installs_is_named_with_the_extra() -> None:
    lacking = missing_extra("up", ModuleNotFoundError("No module named 'grpc'", name="grpc.aio"))
    assert str(lacking) == "mrclab up needs Python's 'grpc': pip install 'mrclab[testbed]'"
    assert missing_extra("up", ModuleNotFoundError("No module named 'mine'", name="mine")) is None
    assert missing_extra("up", ValueError("x")) is None


def test_an_empty_target_in_the_environment_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MRCLAB_TARGET", "")
    assert parser().parse_args(["up"]).target == "auto"
