"""A user's own switch program: all tables and actions that the controller uses must exist by name."""

import json
import os
import re
from pathlib import Path

import pytest

from mrclab.controller.pipeline import shipped_pipeline
from mrclab.controller.programs import load_program, pipeline_of, require_compiler
from mrclab.linux.errors import InputError, MachineError
from mrclab.p4src.compile import HERE

SHIPPED = shipped_pipeline()

needs_p4c = pytest.mark.skipif(
    not any((Path(folder) / "p4c-bm2-ss").exists() for folder in os.get_exec_path()),
    reason="p4c-bm2-ss is not on PATH",
)


def own(folder: Path, *changes: tuple[str, str]) -> Path:
    """Write the shipped program under another name, with changes to its P4Info. Return its path."""
    program = folder / "mine.json"
    program.write_bytes(SHIPPED.json.read_bytes())
    text = SHIPPED.p4info.read_text()
    for pattern, new in changes:
        text, count = re.subn(pattern, new, text)
        assert count
    (folder / "mine.p4info.txtpb").write_text(text)
    return program


def test_the_shipped_program_is_what_runs_without_one_of_ones_own(tmp_path: Path) -> None:
    assert pipeline_of("", tmp_path) == SHIPPED


def test_a_compiled_program_is_taken_with_the_p4info_beside_it(tmp_path: Path) -> None:
    program = own(tmp_path)
    found = load_program(program, tmp_path / "made")
    assert (found.json, found.p4info) == (program, tmp_path / "mine.p4info.txtpb")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("change", "lacking"),
    [
        ((r'alias: "next_hop"', 'alias: "neighbours"'), "table next_hop"),
        ((r'alias: "red"', 'alias: "mark"'), "action red of table marking"),
        ((r'alias: "un"', 'alias: "un_other"'), "action un of table my_sid"),
        ((r'name: "trim_from"', 'name: "cut_from"'), "parameter trim_from of action send_at"),
        ((r'(name: "byte_time"\s+bitwidth:) 32', r"\1 16"), "parameter byte_time of action send_at with 32"),
        ((r'(name: "shift"\s+bitwidth:) 8', r"\1 5"), "parameter shift of action read_ev with 8 bits"),
        ((r'(name: "dscp"\s+bitwidth:) 6', r"\1 8"), "dscp of table traffic_class as exact of 6 bits"),
        ((r'name: "dscp"', 'name: "tos"'), "match field dscp of table traffic_class"),
        ((r'alias: "ways"', 'alias: "paths"'), "action profile ways"),
        ((r'alias: "port_rx"', 'alias: "received"'), "counter port_rx"),
        ((r'alias: "egress_fault.fault"', 'alias: "fault"'), "table egress_fault.fault"),
        ((r"direct_resource_ids: \d+", ""), "direct counter of table my_sid"),
    ],
)
def test_what_a_program_lacks_is_named(tmp_path: Path, change: tuple[str, str], lacking: str) -> None:
    with pytest.raises(InputError, match=f"mine.json: the controller uses .* lacks: .*{lacking}") as refused:
        load_program(own(tmp_path, change), tmp_path)
    assert "\n" not in str(refused.value)


def test_many_missing_things_are_counted(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"lacks: (.*, ){7}.* and \d+ more"):
        load_program(own(tmp_path, (r"alias: ", 'alias: "x" # ')), tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("none.json", None, "no such file"),
        ("mine.txt", "{}", "a switch program is FILE.p4 or FILE.json"),
        ("mine.json", "{", "not BMv2 JSON"),
        ("mine.json", "[]", "it has no pipelines"),
        ("mine.json", json.dumps({"pipelines": []}), "no P4Info beside it: .* mine.p4info.txtpb"),
    ],
)
def test_what_is_no_program_is_refused_in_a_line(
    tmp_path: Path, name: str, text: str | None, says: str
) -> None:
    program = tmp_path / name
    if text is not None:
        program.write_text(text)
    with pytest.raises(InputError, match=says):
        load_program(program, tmp_path)


def test_a_p4info_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    program = own(tmp_path)
    (tmp_path / "mine.p4info.txtpb").write_text("tables {")
    with pytest.raises(InputError, match=r"mine.p4info.txtpb: not a P4Info"):
        load_program(program, tmp_path)


def test_without_a_compiler_p4_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "mine.p4"
    program.write_text("")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError, match=r"no p4c-bm2-ss on PATH: install .* or give .*FILE.json"):
        load_program(program, tmp_path)
    require_compiler(tmp_path / "mine.json")


def stand_in(folder: Path, says: str, code: int) -> None:
    """Write a fake compiler that prints ``says`` and ends with ``code``."""
    compiler = folder / "p4c-bm2-ss"
    compiler.write_text(
        "#!/bin/sh\n"
        'while [ $# -gt 0 ]; do case "$1" in\n'
        f"-o) cp {SHIPPED.json} $2;; --p4runtime-files) cp {SHIPPED.p4info} $2;;\n"
        "-I) includes=$2;; esac; shift; done\n"
        f'[ -e "$includes/headers.p4" ] || exit 9\necho "{says}" >&2\nexit {code}\n'
    )
    compiler.chmod(0o755)


def test_p4_is_compiled_with_the_shipped_sources_to_include(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, "", 0)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program = tmp_path / "mine.p4"
    program.write_text("")
    found = load_program(program, tmp_path / "made")
    assert found.json.read_bytes() == SHIPPED.json.read_bytes()
    assert found.p4info.parent == tmp_path / "made"


def test_what_does_not_compile_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "a.p4(3): [--Wwarn] warning: x\na.p4(7): [--Werror] error: no such  field\nmore", 1)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program = tmp_path / "mine.p4"
    program.write_text("")
    with pytest.raises(InputError) as refused:
        load_program(program, tmp_path / "made")
    assert str(refused.value) == "p4c: mine.p4: a.p4(7): [--Werror] error: no such field"


@needs_p4c
def test_the_real_compiler_makes_a_changed_program_of_two_files(tmp_path: Path) -> None:
    for name in ("mrc_switch.p4", "ecn.p4"):
        (tmp_path / name).write_text((HERE / name).read_text())
    assert load_program(tmp_path / "mrc_switch.p4", tmp_path / "made").json.exists()
    (tmp_path / "ecn.p4").write_text((HERE / "ecn.p4").read_text().replace("action red", "action blue"))
    with pytest.raises(InputError, match=r"p4c: mrc_switch.p4: .*ecn.p4.*red"):
        load_program(tmp_path / "mrc_switch.p4", tmp_path / "made")
