"""Bad input at the command line gives one clear line and the right exit code, and leaves nothing behind."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from mrclab.cli import main
from mrclab.linux.errors import MachineError
from tests.support.privilege import AS_NOBODY

BAD_TOPOLOGY = "name: bad\nplanes: 1\nt0: 2\nt1: 0\nhosts: 2\n"


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Done]


@pytest.fixture
def mrclab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command line in this process, to save the time of the imports."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Done:
        capsys.readouterr()
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        return Done(code, *capsys.readouterr())

    return run


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "no-such-scenario"], "no scenario 'no-such-scenario': give a file or one of"),
        (["run", "link-kill", "--topology", "no-such"], "no topology 'no-such': give a file or one of"),
        (["run", "link-kill", "--topology", "bad.yaml"], "bad.yaml:4: t1 is 0, so no T0 has an uplink"),
        (["run", "bad.yaml"], "bad.yaml:2"),
        (["run", "link-kill", "--trials", "0"], "trials must be from 1"),
        (["run", "link-kill", "--trials", "many"], "invalid int value"),
        (["run", "link-kill", "--set", "workload.rate=fast"], "must be a rate such as"),
        (["run", "link-kill", "--set", "no_such_key=1"], "has no key 'no_such_key'"),
        (["run", "link-kill", "--set", "nonsense"], "--set"),
        (["run", "link-kill", "--set", "faults.0.where=p0-t0-1:p0-t1-0"], "is on no path"),
        (["run", "link-kill", "--target", "tofino"], "invalid choice: 'tofino'"),
        (["run", "link-kill", "--out", "full"], "'full' is not empty"),
        (["run", "link-kill", "--target", "sim", "--out", "a\udcff"], "holds bytes that are not UTF-8"),
        (["report", "a\udcff"], "holds bytes that are not UTF-8"),
        (["run", "link-kill", "--out", "bad.yaml"], "cannot use 'bad.yaml'"),
        (
            ["run", "headline", "--dry-run", "--set", "faults.0.kind=corruption"],
            "routers cannot make corruption",
        ),
        (
            ["run", "link-kill", "--dry-run", "--target", "bmv2", "--set", "faults.0.kind=carrier"],
            "use blackhole on links between switches",
        ),
        (["run"], "run what? Give a scenario"),
        (["run", "--resume", "nothing"], "no run in 'nothing'"),
        (["run", "link-kill", "--resume", "full"], "leave 'scenario' out"),
        (["run", "fig12", "--dry-run", "--set", "faults.0.at=5 s"], "the workload is over by then"),
        (["up", "--topology", "bad.yaml"], "bad.yaml:4"),
        (["soak", "none"], "no scenario 'none': give a file or one of"),
        (["soak", "--duration", "soon"], "duration must be a time"),
        (["soak", "--set", "workload.hosts=60"], "workload.hosts: lab has 8 hosts, not 60"),
        (["soak", "--out", "full"], "'full' is not empty"),
        (["no-such-command"], "invalid choice"),
        ([], "required: COMMAND"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    mrclab: Command, words: list[str], says: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.yaml").write_text(BAD_TOPOLOGY)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "result.json").write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    done = mrclab(*words)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert done.stderr.startswith("mrclab: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert sorted(tmp_path.rglob("*")) == before


def starts_nothing(*_: object, **__: object) -> None:
    raise AssertionError("it was started")


@pytest.mark.parametrize(
    "words", [("run", "headline"), ("run", "headline", "--set", "transports={frr-hold: {use: frr}}")]
)
def test_a_run_is_refused_before_it_starts_where_a_transport_lacks_something(
    mrclab: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """If FRRouting is missing, the error must come before the first transport runs."""

    def absent() -> Path:
        raise MachineError("FRRouting is not installed", "install the package frr")

    monkeypatch.setattr("mrclab.testbed.frr.daemons.find_daemons", absent)
    monkeypatch.setattr("mrclab.switches.target.require_target", lambda choice: choice)
    monkeypatch.setattr("mrclab.testbed.doctor.require_machine", lambda: None)
    monkeypatch.setattr("mrclab.experiments.live.engine.run_scenario", starts_nothing)
    done = mrclab(*words, "--target", "ebpf", "--out", "out")
    assert done.returncode == 3, done.stderr
    assert "FRRouting is not installed: install the package frr\n" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_fabric_is_not_brought_up_on_switches_that_cannot_run(
    mrclab: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrclab.running.require_machine", lambda: None)
    monkeypatch.setattr("mrclab.running.subprocess.Popen", starts_nothing)
    monkeypatch.setenv("PATH", "/nonexistent")
    done = mrclab("up", "--target", "bmv2")
    assert done.returncode == 3
    assert "simple_switch_grpc is not on PATH: install BMv2" in done.stderr
    assert done.stderr.count("\n") == 1


def test_help_names_every_command(mrclab: Command) -> None:
    done = mrclab("--help")
    assert done.returncode == 0
    for command in ("run", "soak", "up", "down", "status", "cli", "fault", "restore", "clean", "doctor"):
        assert f"\n    {command} " in done.stdout


@pytest.mark.root
@pytest.mark.parametrize("words", [["run", "link-kill"], ["soak"], ["up"], ["clean"]])
def test_without_root_one_line_says_so(words: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [*AS_NOBODY, sys.executable, "-m", "mrclab", *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        timeout=60,
    )
    assert done.returncode == 3, done.stderr
    assert "root" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["link-kill", "headline", "random-faults", "fig12"])
def test_every_kind_of_scenario_has_a_plan(mrclab: Command, name: str, tmp_path: Path) -> None:
    done = mrclab("run", name, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "workload: " in done.stdout
    assert "fault: " in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_version_is_that_of_the_package(mrclab: Command) -> None:
    done = mrclab("--version")
    assert done.stdout.startswith("mrclab ")


def test_figures_that_only_virtual_time_has_run_there_whatever_the_target(mrclab: Command) -> None:
    done = mrclab("run", "figures", "--target", "ebpf", "--dry-run")
    assert done.returncode == 0
    assert "fig22:" in done.stdout
    alone = mrclab("run", "fig22", "--target", "ebpf", "--dry-run")
    assert alone.returncode == 2
    assert "only --target sim has lossless links" in alone.stderr


def test_result_schema_is_json() -> None:
    from mrclab.experiments.result.model import result_schema

    assert json.loads(json.dumps(result_schema()))["type"] == "object"


@pytest.mark.slow
def test_a_reader_that_has_enough_is_no_error_to_speak_of(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mrclab", "run", "headline", "--dry-run"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, cwd=tmp_path, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1
