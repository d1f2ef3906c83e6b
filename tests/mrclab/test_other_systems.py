"""Features that also work on Windows and macOS: simulated runs, reports, comparisons and labs.

The tests run on Linux. `tests.support.other_systems` hides the parts of Python that another system lacks.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mrclab.experiments.result.file import load_result
from tests.support.other_systems import SYSTEMS, environment


class Machine:
    """A fake of another system that runs programs in a separate directory."""

    def __init__(self, system: str, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        self._environment = environment(system, folder)

    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.home,
            env=self._environment,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )

    def mrclab(self, *words: str) -> str:
        done = self.python("-m", "mrclab", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def machine(system: str, tmp_path: Path) -> Machine:
    return Machine(system, tmp_path)


OF_THE_MACHINE = ("run.json", "result.json", "report.html")
"""Files of a run that name its system. All other files must be equal on all systems."""


def run_and_report(machine: Machine) -> Path:
    """Simulate a scenario, rewrite the report, compare the run with itself. Return the run's directory."""
    machine.mrclab("run", "link-kill", "--target", "sim", "--trials", "2", "--out", "run")
    run = machine.home / "run"
    page = (run / "report.html").read_bytes()
    (run / "report.html").unlink()
    machine.mrclab("report", "run")
    assert (run / "report.html").read_bytes() == page
    assert "recovered_us" in machine.mrclab("compare", "run", "run")
    return run


@pytest.mark.slow
@pytest.mark.timeout(900)  # for a busy machine
def test_a_simulated_run_is_the_same_on_both_and_is_reported(tmp_path: Path) -> None:
    machines = []
    for system in SYSTEMS:
        (tmp_path / system).mkdir()
        machines.append(Machine(system, tmp_path / system))
    with ThreadPoolExecutor() as pool:
        runs = list(pool.map(run_and_report, machines))
    names = [{path.relative_to(run) for path in run.rglob("*") if path.is_file()} for run in runs]
    assert names[0] == names[1]
    first, second = ({name: (run / name).read_bytes() for name in names[0]} for run in runs)
    assert {str(name) for name in names[0] if first[name] != second[name]} <= {*OF_THE_MACHINE}
    for run in runs:
        assert not any(b"\r" in (run / name).read_bytes() for name in OF_THE_MACHINE)
        result = load_result(run)
        assert (result["integrity"], len(result["trials"])) == ("ok", 2)


@pytest.mark.parametrize("system", SYSTEMS)
def test_help_needs_nothing_of_linux(system: str, machine: Machine) -> None:
    assert "--target" in machine.mrclab("run", "--help")


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_lab_without_a_fabric_is_started_and_checked(system: str, machine: Machine) -> None:
    machine.mrclab("lab", "solution", "8")
    assert "All 8 checks pass" in machine.mrclab("lab", "check", "8", "lab-08-design-solution")


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("words", ["up", "fault blackhole p0-t0-0:p0-t1-0", "run link-kill --out run"])
def test_a_command_that_needs_linux_says_so(words: str, system: str, machine: Machine) -> None:
    done = machine.python("-m", "mrclab", *words.split())
    (line,) = done.stderr.splitlines()
    assert done.returncode == 3
    assert f"needs Linux, and this is {'Windows' if system == 'win32' else 'macOS'}: " in line
    assert list(machine.home.iterdir()) == []


TAKEN_AWAY = {
    "import mrclab.linux.rtnetlink": "No module named 'pyroute2'",
    "from mrclab.linux.link_monitor import LinkMonitor as made; made()": "no attribute 'AF_NETLINK'",
    "from mrclab.linux.system import libc; libc()": "no library of C",
    "from mrclab.linux.processes import Process; print(Process.of(1))": "no process 1",
}


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("program", TAKEN_AWAY)
def test_these_tests_would_notice(program: str, system: str, machine: Machine) -> None:
    done = machine.python("-c", program)
    assert TAKEN_AWAY[program] in done.stderr


def test_a_text_without_a_chosen_line_end_would_be_noticed(tmp_path: Path) -> None:
    machine = Machine("win32", tmp_path)
    written = "Markers(Path('m')).write('n', Identity(1, 2))"
    done = machine.python("-c", f"from mrclab.linux.namespaces import *; {written}")
    assert (machine.home / "m" / "n").read_bytes() == b"1:2\r\n", done.stderr
