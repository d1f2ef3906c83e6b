"""A made-up course: its exercises run unsolved and solved, with compiled programs and with a fake p4c."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mrclab.exercises.course import Case, NotCompiledError, cases_of, compile_all, first_error, staged
from mrclab.linux.errors import BadInputError
from mrclab.testbed.names import PREFIX_VARIABLE
from tests.support.switch_kit import DATA, ROOT

TUNNEL = Path(__file__).parent / "tunnel"
P4C = f"""#!/bin/sh
# Stands in for p4c: a program with an error is refused, any other one is the router of the tests.
for word; do last=$word; done
while [ $# -gt 1 ]; do
    case $1 in -o) json=$2 ;; --p4runtime-files) info=$2 ;; esac
    shift
done
if grep -q TODO "$last"; then
    echo "$(basename $last)(1): [--Werror=not-found] error: x: declaration not found" >&2
    exit 1
fi
cp {DATA}/router.json "$json" && cp {DATA}/router.p4info.txtpb "$info"
"""


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """Write two exercises, one with sources and one compiled, and a directory that is no exercise."""
    root = tmp_path / "course" / "exercises"
    (root / "notes").mkdir(parents=True)
    written = root / "written"
    shutil.copytree(TUNNEL, written)
    for runtime in written.glob("s*-runtime.json"):
        runtime.write_text(runtime.read_text().replace("router.p4info", "router.p4.p4info"))
    (written / "router.p4").write_text("// TODO: write this\n")
    (written / "solution").mkdir()
    (written / "solution" / "router.p4").write_text("// written\n")
    built = root / "built"
    shutil.copytree(TUNNEL, built / "small-topo")
    for name in ("s1-runtime.json", "s2-runtime.json"):
        shutil.move(built / "small-topo" / name, built / name)
    topology = json.loads((built / "small-topo" / "topology.json").read_text())
    (built / "small-topo" / "topology.json").write_text(json.dumps(topology))
    for place in (built / "build", built / "solution" / "build"):
        place.mkdir(parents=True)
        for name in ("router.json", "router.p4info.txtpb"):
            shutil.copy(DATA / name, place / name)
    # In the unsolved exercise, the first switch has no entry for any host.
    first = json.loads((built / "s1-runtime.json").read_text())
    shutil.copy(built / "s1-runtime.json", built / "solution" / "s1-runtime.json")
    first["table_entries"] = first["table_entries"][:1]
    (built / "s1-runtime.json").write_text(json.dumps(first))
    return root.parent


def test_the_exercises_of_a_course_are_found_with_each_topology(course: Path, tmp_path: Path) -> None:
    assert [(case.name, case.topology) for case in cases_of(course)] == [
        ("built", "small-topo/topology.json"),
        ("written", "topology.json"),
    ]
    (course / "exercises/built/other-topo").mkdir()
    shutil.copy(TUNNEL / "topology.json", course / "exercises/built/other-topo")
    assert len(cases_of(course / "exercises")) == 3
    for bad in (tmp_path / "none", course / "exercises" / "notes"):
        with pytest.raises(BadInputError, match=r"no directory|no exercises"):
            cases_of(bad)


def test_a_solution_replaces_files_wherever_they_are_and_the_course_stays_as_it_was(
    course: Path, tmp_path: Path
) -> None:
    before = {path: path.read_bytes() for path in course.rglob("*") if path.is_file()}
    case = Case(course / "exercises/written", "topology.json")
    assert "TODO" in (staged(case, False, tmp_path / "a") / "router.p4").read_text()
    assert "TODO" not in (staged(case, True, tmp_path / "b") / "router.p4").read_text()
    (course / "exercises/written/solution/topology.json").write_text("{}")
    assert (staged(case, True, tmp_path / "c") / "topology.json").read_text() == "{}"
    (course / "exercises/written/solution/topology.json").unlink()
    assert {path: path.read_bytes() for path in course.rglob("*") if path.is_file()} == before
    with pytest.raises(NotCompiledError, match="no p4c-bm2-ss on PATH"):
        compile_all(tmp_path / "a", tmp_path / "a" / "build", compiler=False)


def test_the_first_error_of_the_compiler_is_one_line() -> None:
    lines = [
        "basic.p4(5): [--Wwarn=unused] warning: x",
        "basic.p4(9): [--Werror=not-found] error: hdr",
        "more",
    ]
    assert first_error(lines, "basic.p4") == "basic.p4(9): [not-found] error: hdr"
    assert first_error([], "basic.p4") == "p4c cannot compile basic.p4"


def run(prefix: str, *words: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, PREFIX_VARIABLE: prefix, "COLUMNS": "160"}
    if path is not None:
        env["PATH"] = f"{path}:{env['PATH']}"
    return subprocess.run(
        [sys.executable, "-m", "mrclab", "exercise", *words], cwd=ROOT, input="h1 echo up\nexit\n",
        capture_output=True, text=True, check=False, timeout=300, env=env,
    )  # fmt: skip


def compiler_in(folder: Path) -> str:
    folder.mkdir()
    (folder / "p4c-bm2-ss").write_text(P4C)
    (folder / "p4c-bm2-ss").chmod(stat.S_IRWXU)
    return str(folder)


@pytest.mark.root
@pytest.mark.timeout(600)
def test_a_course_is_run_as_it_is_and_solved(course: Path, tmp_path: Path) -> None:
    prefix = f"ec{os.urandom(3).hex()}"
    path = compiler_in(tmp_path / "bin")
    (course / "exercises/built/router.p4").write_text("// compiles to the router\n")
    done = run(prefix, "--all", str(course), "--target", "ebpf", path=path)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split("  ") for line in done.stdout.splitlines()]
    found = {row[0].strip(): [cell.strip() for cell in row if cell.strip()][1:] for row in rows}
    assert found["written"] == [
        "topology.json", "router.p4(1): [not-found] error: x: declaration not found", "6 of 6 pings answered",
    ]  # fmt: skip
    assert found["built"] == ["small-topo", "2 of 6 pings answered", "6 of 6 pings answered"]
    assert not [n for n in os.listdir("/run/netns") if n.startswith(prefix)]


@pytest.mark.root
@pytest.mark.timeout(300)
def test_an_exercise_that_is_not_compiled_yet_is_compiled_first(course: Path, tmp_path: Path) -> None:
    prefix = f"ed{os.urandom(3).hex()}"
    exercise = course / "exercises" / "written"
    shutil.copy(exercise / "solution" / "router.p4", exercise / "router.p4")
    (exercise / "other-topo").mkdir()
    shutil.move(exercise / "topology.json", exercise / "other-topo" / "topology.json")
    shutil.copytree(exercise / "other-topo", exercise / "third-topo")
    (exercise / "Makefile").write_text("TOPO = third-topo/topology.json\ninclude ../../utils/Makefile\n")
    done = run(prefix, str(exercise), "--target", "ebpf", path=compiler_in(tmp_path / "bin"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "runs s2-runtime.json" in done.stdout
    assert not (exercise / "build").exists()


def test_all_and_a_topology_do_not_go_together(course: Path) -> None:
    done = run("eznone", "--all", str(course), "--topology", "x.json")
    assert done.returncode == 2
    assert "--all runs every topology" in done.stderr
