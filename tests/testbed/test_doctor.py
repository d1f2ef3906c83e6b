from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mrclab.linux.errors import MachineError
from mrclab.testbed import doctor as checks
from mrclab.testbed.doctor import Check, doctor, report, require_machine
from tests.support.paths import ROOT


def test_a_report_has_a_line_for_each_check_and_a_verdict() -> None:
    found = [
        Check("veth", True, True, "works", "never shown"),
        Check("netem", False, False, "not there", "modprobe sch_netem"),
        Check("root", False, True, "not running as root", "run it as root (sudo)"),
    ]
    assert report(found).splitlines() == [
        "ok       veth: works",
        "absent   netem: not there; modprobe sch_netem",
        "MISSING  root: not running as root; run it as root (sudo)",
        "missing: root",
    ]
    assert report(found[:2]).endswith("this machine can run mrclab")


def test_without_root_the_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MachineError, match=r"^not running as root: run it as root \(sudo\)$"):
        require_machine()
    found = {check.name: check for check in doctor()}
    assert not found["root"].ok
    assert "veth" not in found


def test_a_missing_tool_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    missing = {check.name: check.mend for check in doctor() if not check.ok}
    assert missing["ip"] == "apt install iproute2"


def test_an_old_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.platform, "release", lambda: "4.19.0-21-amd64")
    kernel = next(check for check in doctor() if check.name == "kernel")
    assert not kernel.ok
    assert kernel.required
    assert kernel.found == "4.19.0-21-amd64"


@pytest.mark.root
def test_the_kernel_is_tried_and_nothing_is_left() -> None:
    before = (os.listdir("/sys/class/net"), os.listdir("/proc/self/fd"))
    found = {check.name: check for check in doctor()}
    assert (os.listdir("/sys/class/net"), os.listdir("/proc/self/fd")) == before
    qdiscs = ("link rates (TBF)", "switch queues (HTB)", "tc clsact")
    for name in ("root", "veth", *qdiscs, "BPF", "tc BPF (cls_bpf)"):
        assert found[name].ok, str(found[name])
    assert found["BPF JIT"].required or found["BPF JIT"].found == "not shown here"


def test_a_container_is_told_where_to_look_for_the_jit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(checks, "_JIT", tmp_path / "none")
    (jit,) = (check for check in doctor() if check.name == "BPF JIT")
    assert not jit.required
    assert "outside of the container" in jit.mend


@pytest.mark.root
def test_what_the_kernel_refuses_becomes_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(checks, "_load_bpf", refuse)
    found = {check.name: check for check in doctor()}
    assert not found["BPF"].ok
    assert found["BPF"].found == "Operation not permitted"
    assert not found["tc BPF (cls_bpf)"].ok


@pytest.mark.root
def test_root_without_its_powers_is_told_what_to_give() -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv (util-linux)")
    code = "from mrclab.testbed.doctor import require_machine; require_machine()"
    drop = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    root = ROOT
    told = subprocess.run([*drop, sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert told.returncode == 1
    assert "may not make network namespaces" in told.stderr.splitlines()[-1]
    assert "docker run --privileged" in told.stderr.splitlines()[-1]
