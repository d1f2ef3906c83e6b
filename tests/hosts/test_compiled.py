"""The compiled core behaves as the one in pure Python, and it is never older than its source."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mrclab.hosts import compiled
from mrclab.hosts.mrc import Endpoint
from mrclab.hosts.mrc.congestion import CongestionControl
from tests.support.mrc_sim import port_addresses, remote_paths
from tests.support.paths import ROOT


def python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def apart(tmp_path, monkeypatch):
    """Set up separate sources and builds for this test."""
    for package in compiled.COMPILED:
        (tmp_path / Path(*package.split("."))).mkdir(parents=True, exist_ok=True)
    for file in compiled.sources():
        shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / compiled.CONSTANTS).parent.mkdir(exist_ok=True)
    shutil.copy(ROOT / compiled.CONSTANTS, tmp_path / compiled.CONSTANTS)
    monkeypatch.setattr(compiled, "_SOURCE", tmp_path)
    monkeypatch.setattr(compiled.sys, "prefix", str(tmp_path))
    monkeypatch.delenv(compiled.PURE_VARIABLE, raising=False)
    return tmp_path / "mrclab" / "hosts"


def fake_build() -> Path:
    target = compiled.directory()
    for package in compiled.COMPILED:
        (target / Path(*package.split("."))).mkdir(parents=True, exist_ok=True)
    return target


def test_the_compiled_drivers_are_what_agents_run():
    if not compiled.in_use():
        pytest.skip("the core is not compiled: 'make compile'")
    imports = "from mrclab.hosts.nic import device; from mrclab.hosts.streams import rounds"
    say = f"{imports}; print(device.__file__, rounds.__file__)"
    assert all(not name.endswith(".py") for name in python("-c", say).stdout.split())


def test_what_is_compiled_is_all_of_the_core_that_a_packet_meets():
    apart = {"__init__", "ev_diagram", "ev_modes"}
    packages = [p for p in compiled.COMPILED if p.startswith(("mrclab.hosts.mrc", "mrclab.hosts.rdma"))]
    for package in packages:
        there = {p.stem for p in ROOT.joinpath(*package.split(".")).glob("*.py")}
        assert there - apart == set(compiled.COMPILED[package]), package
    hosts = ROOT / "mrclab" / "hosts"
    folders = {p.parent for name in ("mrc", "rdma") for p in (hosts / name).rglob("*.py")}
    # Profiles are not compiled, because no packet uses them.
    folders.remove(hosts / "mrc" / "profiles")
    assert {ROOT.joinpath(*package.split(".")) for package in packages} == folders


def test_no_compiled_module_has_a_class_variable_with_an_annotation():
    # mypyc makes a ClassVar a field of the dataclass, and then the module cannot be imported.
    assert [str(file) for file in compiled.sources() if "ClassVar[" in (ROOT / file).read_text()] == []


def test_a_build_is_used_until_its_source_changes(apart):
    target = fake_build()
    for package in compiled.COMPILED:
        path = ["source"]
        compiled.prefer(path, package)
        assert path == [str(target.joinpath(*package.split("."))), "source"]
    for edited in (f"../../{compiled.CONSTANTS}", "nic/device.py", "mrc/wire.py", "rdma/frames.py"):
        text = (apart / edited).read_text()
        (apart / edited).write_text(text + "# edited\n")
        path = ["source"]
        compiled.prefer(path, "mrclab.hosts.mrc")
        assert path == ["source"]
        (apart / edited).write_text(text)


def test_pure_python_can_be_asked_for(apart, monkeypatch):
    fake_build()
    monkeypatch.setenv(compiled.PURE_VARIABLE, "1")
    path = ["source"]
    compiled.prefer(path, "mrclab.hosts.mrc")
    assert path == ["source"]


def test_without_a_compiler_one_line_says_so_and_nothing_is_left(apart, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nowhere")
    assert compiled.main() == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "pure Python" in line
    assert "install gcc and python3-dev" in line
    assert not (Path(compiled.sys.prefix) / "mrclab-core").exists()


@pytest.mark.slow
def test_source_that_does_not_compile_says_where_to_look_and_leaves_no_build(apart, capsys):
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here")
    (apart / "rdma" / "frames.py").write_text("this is no Python\n")
    assert compiled.main() == 3
    log = Path(compiled.sys.prefix) / "mrclab-core" / "build.log"
    assert str(log) in capsys.readouterr().err
    assert [p.name for p in log.parent.iterdir() if p.is_dir()] == []


def test_each_mode_says_which_it_is():
    say = "from mrclab.hosts import compiled; print(compiled.in_use(), compiled.describe())"
    pure = python("-c", say, MRCLAB_PURE="1").stdout
    assert pure.startswith("False pure Python: MRCLAB_PURE is set")
    if compiled.directory().is_dir():
        assert python("-c", say, MRCLAB_PURE="").stdout == "True compiled\n"


def test_a_congestion_control_need_not_be_compiled():
    class OnePacket(CongestionControl):
        def budget_bytes(self, now_ns: int) -> int:
            return 1 - self.inflight_bytes

    ends = [
        Endpoint(port_addresses(n, 1), rng=random.Random(n), congestion=lambda c: OnePacket(c.cwnd_bytes))
        for n in (0, 1)
    ]
    qpns = [end.create_qp() for end in ends]
    for me in (0, 1):
        attributes = ends[1 - me].local_attributes(qpns[1 - me])
        ends[me].connect(qpns[me], attributes, remote_paths(me, 1 - me, 1, 4))
    ends[0].post_write(qpns[0], 1, bytes(20_000), 0, 0)
    assert len(ends[0].frames_to_send(0)) == 1


@pytest.mark.slow
def test_the_core_passes_its_tests_in_the_other_mode_too():
    if not compiled.in_use() and not compiled.directory().is_dir():
        if os.environ.get("CI"):
            pytest.fail("the core was not compiled")
        pytest.skip("the core is not compiled: 'make compile'")
    other = "1" if compiled.in_use() else ""
    words = ("-q", "-x", "-m", "not slow", "tests/hosts/mrc", "tests/hosts/roce")
    done = python("-m", "pytest", *words, MRCLAB_PURE=other)
    assert done.returncode == 0, done.stdout[-3000:]
