"""p4runtime-shell on a running switch, in interactive use and as a script."""

import shutil
import subprocess
import sys

import pytest

from mrclab.shell_environment import ShellEnvironmentError, shell_python
from tests.support.command import Mrclab, Up
from tests.support.shell_script import SCRIPT

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(scope="module")
def environment() -> None:
    try:
        shell_python()
    except ShellEnvironmentError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    "target",
    [
        "ebpf",
        pytest.param(
            "bmv2",
            marks=[
                pytest.mark.bmv2,
                pytest.mark.skipif(shutil.which("simple_switch_grpc") is None, reason="no BMv2 on PATH"),
            ],
        ),
    ],
)
def test_the_shell_lists_inserts_and_reads(mrclab: Mrclab, environment: None, target: str) -> None:
    mrclab.ok("up", "--topology", "tiny", "--target", target)
    said = mrclab("shell", "p0-t0-0", input=SCRIPT)
    assert said.returncode == 0, said.stderr
    assert "micro_segment.my_sid" in said.stdout
    assert "FOUND 1 MrcIngress.ingress_fault.blackhole" in said.stdout
    # The controller is still primary, so it can still write with its election id.
    mrclab.ok("fault", "blackhole", "p0-t0-0:p0-t1-1")
    mrclab.ok("restore", "p0-t0-0:p0-t1-1")
    assert all(switch["drift"] is None for switch in mrclab.status()["switches"].values())
    mrclab.ok("down")


def test_a_switch_that_is_not_there_is_named(tiny: Up) -> None:
    refused = tiny.mrclab("shell", "p9-t0-0")
    assert refused.returncode == 2
    assert refused.stderr == "mrclab: no switch 'p9-t0-0' here: it has p0-t0-0 to p1-t1-1\n"


def test_without_a_testbed_there_is_nothing_to_open(mrclab: Mrclab) -> None:
    refused = mrclab("shell", "p0-t0-0")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1


def test_the_environment_needs_nothing_of_ours() -> None:
    """A Docker image runs shell_environment.py alone, before mrclab is installed."""
    code = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='imported')"
    file = sys.modules["mrclab.shell_environment"].__file__
    assert file is not None
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, file],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
