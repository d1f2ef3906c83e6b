"""A target with one process for each switch: the end of a process is reported, and the switch restarts."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrclab.faults.kinds import Fault
from mrclab.hosts.path_probe import PathProber, probed_paths
from mrclab.linux import namespaces
from mrclab.linux.errors import BadInputError, SwitchError
from mrclab.linux.namespaces import in_thread
from mrclab.linux.process_watch import DeathWatch
from mrclab.switches.bmv2 import PCAP_VARIABLE, Bmv2Target
from mrclab.switches.spec import SwitchSpec
from mrclab.testbed.lab import Lab
from mrclab.testbed.names import Names
from mrclab.topologies import load_fabric
from tests.support.switch_kit import Namespace


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    ns = Namespace()
    ns.pair("s1", "far1")
    ns.pair("s2", "far2")
    yield ns
    ns.delete()


def test_an_interface_that_is_not_there_is_named(namespace: Namespace, tmp_path: Path) -> None:
    specs = [SwitchSpec("good", 1, {1: "s1"}), SwitchSpec("bad", 2, {1: "nowhere"})]
    target = Bmv2Target()
    with pytest.raises(BadInputError, match="bad: no interface nowhere"):
        target.start(specs, netns=namespace.name, log_dir=tmp_path)
    assert target.pids() == []


def test_a_switch_that_ends_at_its_start_is_named_with_its_last_words_at_once(
    namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("simple_switch_grpc")
    wrapper = tmp_path / "bin" / "simple_switch_grpc"
    wrapper.parent.mkdir()
    wrapper.write_text(
        f'#!/bin/sh\ncase "$*" in *"--device-id 2 "*) echo no more memory; exit 7;; esac\nexec {real} "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", str(wrapper.parent), prepend=os.pathsep)
    specs = [SwitchSpec("good", 1, {1: "s1"}), SwitchSpec("bad", 2, {1: "s2"})]
    target = Bmv2Target()
    with pytest.raises(SwitchError, match=r"^bad: .* exit code 7 .*no more memory"):
        target.start(specs, netns=namespace.name, log_dir=tmp_path)
    assert target.pids() == []


def test_each_switch_has_a_log_and_captures_if_asked_for(
    namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PCAP_VARIABLE, str(tmp_path / "pcap"))
    target = Bmv2Target()
    try:
        target.start([SwitchSpec("a", 1, {1: "s1", 2: "s2"})], netns=namespace.name, log_dir=tmp_path)
        assert "s1" in (tmp_path / "a.log").read_text()
        assert {file.name.partition("_")[0] for file in (tmp_path / "pcap").iterdir()} == {"s1", "s2"}
    finally:
        target.stop()
    assert not target.alive()


def test_a_killed_switch_is_noticed_started_and_programmed_again(tmp_path: Path) -> None:
    """Use a separate thread, because `Lab.up` moves its thread into the switches' namespace."""

    def body() -> None:
        names = Names.of_prefix(f"t{os.urandom(3).hex()}")
        with Lab.up(load_fabric("tiny"), "bmv2", tmp_path, names=names) as lab:
            assert isinstance(lab.target, Bmv2Target)
            lab.faults.apply(Fault("blackhole", "p1-t0-0:p1-t1-0"))
            pids = lab.target.processes()
            with DeathWatch(pids) as watch:
                os.kill(pids["p0-t1-0"], signal.SIGKILL)
                death = watch.wait(5)
            assert death is not None
            assert death.name == "p0-t1-0"
            assert lab.target.last_words("p0-t1-0") == "was ended by SIGKILL"
            assert not lab.target.alive()
            lab.revive("p0-t1-0")
            assert lab.target.processes()["p0-t1-0"] != pids["p0-t1-0"]
            assert lab.target.alive()
            assert lab.controller.programmings["p0-t1-0"] == 2
            assert lab.controller.programmings["p0-t1-1"] == 1
            assert lab.controller.verify() == ()
            lab.faults.undo("p1-t0-0:p1-t1-0")

    in_thread(body)


def _least_rtt_ns(lab: Lab) -> int:
    """Return the shortest time of several probes over the link p0-t0-0:p0-t1-0 and back."""
    path = next(p for p in probed_paths(lab.fabric, "h0", "h2") if p.switches[:2] == ("p0-t0-0", "p0-t1-0"))
    with namespaces.inside(lab.network.names.host("h0")):
        prober = PathProber(lab.fabric, "h0")
    with prober:
        return min(echo.rtt_ns for echo in (prober.probe(path, 5.0) for _ in range(10)) if echo is not None)


def test_a_link_is_made_longer_and_as_long_as_it_was(tmp_path: Path) -> None:
    fault = Fault("delay", "p0-t0-0:p0-t1-0", delay_ns=50_000_000)

    def body() -> None:
        names = Names.of_prefix(f"t{os.urandom(3).hex()}")
        with Lab.up(load_fabric("tiny"), "bmv2", tmp_path, names=names) as lab:
            assert _least_rtt_ns(lab) < fault.delay_ns
            lab.faults.apply(fault)
            assert _least_rtt_ns(lab) >= 2 * fault.delay_ns
            lab.faults.undo(fault.where)
            assert _least_rtt_ns(lab) < fault.delay_ns

    in_thread(body)


def test_a_lab_leaves_no_switch_behind(tmp_path: Path) -> None:
    names = Names.of_prefix(f"t{os.urandom(3).hex()}")

    def body() -> list[int]:
        with Lab.up(load_fabric("tiny"), "bmv2", tmp_path, names=names) as lab:
            return lab.target.pids()

    for pid in in_thread(body):
        assert subprocess.run(["kill", "-0", str(pid)], check=False, capture_output=True).returncode != 0
