"""Every command and program on every page runs exactly as shown, or the page says why no test runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mrclab.cli import main, parser
from mrclab.experiments.spec.scenario import load_scenario
from mrclab.sweep.spec import parse_sweep
from mrclab.testbed.names import PREFIX_VARIABLE
from mrclab.topologies import load_fabric
from tests.support import pages
from tests.support.command import Mrclab, up
from tests.support.pages import ALONE, FILE, NO_COMMANDS, NOT_RUN, PLANNED, ROOT_RUN, RUN, Block
from tests.support.paths import ROOT

BLOCKS = pages.blocks()
TIMEOUT_S = 240


def _marked(mark: str) -> list[Block]:
    return [block for block in BLOCKS if block.mark == mark]


def test_no_command_is_left_without_a_word_on_whether_it_is_run() -> None:
    unmarked = [
        str(block)
        for block in BLOCKS
        if block.language not in (*NO_COMMANDS, "yaml")
        and block.mark not in (RUN, ROOT_RUN, ALONE)
        and not block.mark.startswith((PLANNED, NOT_RUN, FILE))
    ]
    assert unmarked == []
    assert pages.indented_commands() == ()


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.commands], ids=str)
def test_every_command_on_a_page_is_one_that_we_have(block: Block) -> None:
    for words in block.commands:
        parser().parse_args(words)


def test_every_command_that_a_sentence_names_is_one_that_we_have() -> None:
    named = pages.named_in_text()
    assert len(named) > 10
    for page, words in named:
        if words[-1] == "--set":
            parser().parse_args([*words, "seed=1"])
        elif len(words) > 1:
            parser().parse_args(words)
        else:
            with pytest.raises(SystemExit) as ended:
                parser().parse_args([*words, "--help"])
            assert ended.value.code == 0, (page, words)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.mark.startswith(PLANNED)], ids=str)
def test_what_takes_long_is_accepted_and_planned(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert block.commands
    for words in block.commands:
        assert main([*words, *([] if "--dry-run" in words else ["--dry-run"])]) == 0


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "yaml"], ids=str)
def test_a_file_that_a_page_shows_is_accepted(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    _write_files(tmp_path)
    path = tmp_path / "shown.yaml"
    keys = set(yaml.safe_load(block.text))
    if "planes" in keys:
        path.write_text(block.text)
        load_fabric(str(path))
    elif "seeds" in keys:
        parse_sweep(block.text, block.page)
    else:
        kind = "spray" if "profiles" in keys else "stream"
        rest = {
            "name": "mine",
            "topology": "tiny",
            "workload": f"{{kind: {kind}, duration: 1 s}}",
            "transports": "{mrc: , mine: {use: mrc}}",
        }
        shown = "".join(f"{key}: {value}\n" for key, value in rest.items() if key not in keys)
        path.write_text(shown + block.text)
        load_scenario(str(path))


@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if b.language == "python" or b.mark.endswith(".py")], ids=str
)
def test_a_program_on_a_page_is_python(block: Block) -> None:
    compile(block.text, str(block), "exec")


# Tests that run the blocks exactly as shown.


@pytest.mark.slow
@pytest.mark.parametrize("block", _marked(RUN), ids=str)
def test_commands_run_as_they_stand(block: Block, results: Path, tmp_path: Path) -> None:
    if "results/" in block.text:
        shutil.copytree(results, tmp_path / "results")
    _run(block, tmp_path, {})


@pytest.mark.slow
@pytest.mark.root
def test_commands_run_as_they_stand_on_a_fabric(tmp_path: Path) -> None:
    with up("lab", "ebpf") as fabric:
        prefix = fabric.mrclab.names.prefix
        for number, block in enumerate(_marked(ROOT_RUN)):
            _run(block, tmp_path / str(number), {PREFIX_VARIABLE: prefix, "PAGES_FABRIC": "up"})
            fabric.mrclab.ok("restore", "--all")


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("block", _marked(ALONE), ids=str)
def test_commands_run_as_they_stand_without_a_fabric(block: Block, tmp_path: Path) -> None:
    _run(block, tmp_path, {PREFIX_VARIABLE: f"t{os.urandom(3).hex()}"})


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with results of a small experiment. The names in the folder are those in the pages."""
    out = tmp_path_factory.mktemp("made") / "results"
    words = ("run", "link-kill", "--target", "sim", "--topology", "tiny", "--trials", "2")
    made = out / "link-kill" / "A"
    subprocess.run(Mrclab.command(*words, "--out", str(made)), check=True, capture_output=True)
    for other in ("link-kill/B", "headline/A"):
        shutil.copytree(made, out / other)
    return out


def _write_files(directory: Path) -> None:
    """Write the files that pages show, and an empty script to activate a Python environment."""
    directory.mkdir(exist_ok=True)
    for block in BLOCKS:
        if block.mark.startswith(FILE):
            (directory / block.mark.removeprefix(FILE)).write_text(block.text)
    activate = directory / ".venv/bin/activate"
    activate.parent.mkdir(parents=True)
    activate.write_text("")


def _run(block: Block, directory: Path, variables: dict[str, str]) -> None:
    """Run a block in a new directory with the pages' files, as if a reader pasted it into a shell."""
    _write_files(directory)
    programs = directory / "programs"
    programs.mkdir()
    prefix = variables.get(PREFIX_VARIABLE, "mrclab")
    ip = shutil.which("ip") or "ip"
    for name, line in (
        ("mrclab", f'exec {sys.executable} -m tests.support.page_command "$@"'),
        ("python", f'exec {sys.executable} "$@"'),
        ("ip", f'exec {ip} "${{@/#mrclab-/{prefix}-}}"'),
    ):
        (programs / name).write_text(f"#!/bin/bash\n{line}\n")
        (programs / name).chmod(0o755)
    search = os.pathsep.join((str(programs), os.environ["PATH"]))
    python = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    command = [sys.executable, "-c", block.text] if block.language == "python" else ["bash", "-eu"]
    done = subprocess.run(
        command if block.language else [*command, "-c", f"{block.text}wait"],
        cwd=directory,
        env={**os.environ, "PATH": search, "PYTHONPATH": python, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{block}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    assert "Traceback" not in done.stderr
