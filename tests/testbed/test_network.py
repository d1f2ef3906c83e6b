"""A whole testbed in real namespaces: its start, its end, and its leftovers after its owner was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from mrclab.linux import namespaces
from mrclab.linux.errors import InputError
from mrclab.linux.processes import Process
from mrclab.testbed import state
from mrclab.testbed.clean import Removed, clean
from mrclab.testbed.names import Names
from mrclab.testbed.network import FabricNetwork, attach
from mrclab.topologies import Fabric, load_fabric
from tests.support.leftovers import kill_with_watchdog, left_in_the_end, leftovers, watchdogs_of
from tests.support.paths import ROOT

pytestmark = pytest.mark.root

RUNNER = ROOT / "tests" / "support" / "network_runner.py"
NET_OF_SELF = [sys.executable, "-c", "import os; print(os.stat('/proc/self/ns/net').st_ino)"]


@contextmanager
def _runner(names: Names, *how: str) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, str(RUNNER), names.prefix, str(names.state_dir), *how]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()


def _inode(namespace: str) -> int:
    found = namespaces.identity(namespace)
    assert found is not None
    return found.inode


def test_up_and_down_leave_nothing(tiny: Fabric, names: Names) -> None:
    here = namespaces.own_identity()
    links = os.listdir("/sys/class/net")
    network = FabricNetwork.up(tiny, names=names)
    assert all(namespaces.exists(name) for name in names.of(tiny))
    network.spawn("h0", ["sleep", "1000"])
    removed = network.down()
    assert len(removed.processes) == 1
    assert set(removed.namespaces) == set(names.of(tiny))
    assert leftovers(names) == []
    assert os.listdir("/sys/class/net") == links
    assert namespaces.own_identity() == here
    assert not network.down()


def test_processes_run_where_they_should(tiny: Fabric, names: Names) -> None:
    with FabricNetwork.up(tiny, names=names) as network:
        for sysfs in (False, True):
            host = network.spawn("h2", NET_OF_SELF, stdout=subprocess.PIPE, text=True, sysfs=sysfs)
            fabric = network.spawn_in_fabric(NET_OF_SELF, stdout=subprocess.PIPE, text=True, sysfs=sysfs)
            assert host.communicate()[0].strip() == str(_inode(names.host("h2")))
            assert fabric.communicate()[0].strip() == str(_inode(names.fabric))
        seen = network.spawn("h2", ["ls", "/sys/class/net"], stdout=subprocess.PIPE, text=True, sysfs=True)
        assert {"h2-eth0", "h2-eth1", "lo"} <= set(seen.communicate()[0].split())
        run = network.spawn("h0", ["printenv", "MRCLAB_RUN"], stdout=subprocess.PIPE, text=True)
        assert run.communicate()[0].strip() == network.run_id
        for sysfs in (False, True):
            with pytest.raises(FileNotFoundError):
                network.spawn("h0", ["no-such-program"], sysfs=sysfs)
        with pytest.raises(KeyError):
            network.spawn("h99", ["true"])


def test_a_second_testbed_is_told_about_the_first(tiny: Fabric, names: Names) -> None:
    with FabricNetwork.up(tiny, names=names) as network:
        with pytest.raises(
            InputError,
            match=r"^the testbed that is up \(topology tiny, since .*\) belongs to .*: wait until it is free",
        ):
            FabricNetwork.up(tiny, names=names)
        assert all(namespaces.exists(name) for name in names.of(tiny))
        assert state.require(names).run_id == network.run_id


def test_two_testbeds_of_different_names_do_not_meet(tiny: Fabric, names: Names, tmp_path: Path) -> None:
    other = Names(names.prefix + "b", tmp_path / "other")
    with FabricNetwork.up(tiny, names=other) as network:
        sleeper = network.spawn("h0", ["sleep", "1000"])
        with FabricNetwork.up(tiny, names=names):
            pass
        assert not clean(names)
        assert sleeper.poll() is None
        assert all(namespaces.exists(name) for name in other.of(tiny))


def test_an_exception_takes_it_down(tiny: Fabric, names: Names) -> None:
    with pytest.raises(RuntimeError, match="oops"), FabricNetwork.up(tiny, names=names):
        raise RuntimeError("oops")
    assert leftovers(names) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_takes_it_down(names: Names, number: signal.Signals) -> None:
    with _runner(names) as runner:
        runner.send_signal(number)
        assert runner.wait(10) in (128 + number, -number)
    assert leftovers(names) == []


def test_a_watchdog_removes_what_a_killed_runner_left(names: Names) -> None:
    with _runner(names) as runner:
        assert len(watchdogs_of(names)) == 1
        runner.kill()
    assert left_in_the_end(names) == []


def test_a_watchdog_that_is_killed_changes_nothing(names: Names) -> None:
    with _runner(names) as runner:
        for pid in watchdogs_of(names):
            os.kill(pid, signal.SIGKILL)
        runner.send_signal(signal.SIGTERM)
        assert runner.wait(10) == 128 + signal.SIGTERM
    assert leftovers(names) == []


def test_clean_removes_what_a_killed_runner_left(tiny: Fabric, names: Names) -> None:
    with _runner(names) as runner:
        kill_with_watchdog(names, runner.pid)
    assert len(leftovers(names)) > 5
    removed = clean(names)
    assert len(removed.processes) == 3
    assert set(removed.namespaces) == set(names.of(tiny))
    assert removed.record
    assert leftovers(names) == []
    assert clean(names) == Removed()


def test_up_cleans_what_a_killed_runner_left(tiny: Fabric, names: Names) -> None:
    with _runner(names) as runner:
        kill_with_watchdog(names, runner.pid)
    dead = state.read(names)
    with FabricNetwork.up(tiny, names=names) as network:
        assert dead is not None
        assert len(network.found.processes) == 3
        assert network.run_id != dead.run_id
        assert list(namespaces.Markers(state.markers_dir(names)).names()) == sorted(names.of(tiny))


def test_clean_ends_a_running_owner_too(names: Names) -> None:
    with _runner(names) as runner:
        removed = clean(names)
        assert runner.pid in [process.pid for process in removed.processes]
        assert runner.wait(10) == 128 + signal.SIGTERM
    assert leftovers(names) == []


def test_a_detached_testbed_outlives_its_maker(tiny: Fabric, names: Names) -> None:
    with _runner(names, "detach") as runner:
        assert runner.wait(10) == 0
    network = FabricNetwork.attached(names)
    assert network.fabric == tiny
    with pytest.raises(InputError, match="a testbed is up"):
        FabricNetwork.up(tiny, names=names)
    assert len(network.down().processes) == 3
    with pytest.raises(InputError, match="no testbed is up"):
        FabricNetwork.attached(names)


def test_a_detached_testbed_whose_processes_died_is_dead(tiny: Fabric, names: Names) -> None:
    network = FabricNetwork.up(tiny, names=names)
    with network.spawn_in_fabric(["sleep", "1000"]) as server:
        network.record_process(server.pid, "switches")
        network.detach()
        assert state.require(names).run_id == network.run_id
        server.kill()
    with pytest.raises(InputError, match="no testbed is up"):
        state.require(names)
    with FabricNetwork.up(tiny, names=names):
        pass


def test_what_is_not_ours_stays(tiny: Fabric, names: Names) -> None:
    foreign = f"{names.prefix}-h0"  # even if it has a name that mrclab would use
    subprocess.run(["ip", "netns", "add", foreign], check=True)
    try:
        argv = ["ip", "netns", "exec", foreign, "sleep", "1000"]
        with subprocess.Popen(argv, env={**os.environ, "MRCLAB_RUN": "other.1"}) as sleeper:
            try:
                with pytest.raises(InputError, match=f"'{foreign}' is there already"):
                    FabricNetwork.up(tiny, names=names)
                assert not clean(names)
                assert namespaces.exists(foreign)
                assert sleeper.poll() is None
                assert not namespaces.exists(names.fabric)
            finally:
                sleeper.kill()
    finally:
        subprocess.run(["ip", "netns", "del", foreign], check=True)


def test_a_name_that_somebody_took_over_stays(tiny: Fabric, names: Names) -> None:
    network = FabricNetwork.up(tiny, names=names)
    taken = names.host("h1")
    subprocess.run(["ip", "netns", "del", taken], check=True)
    subprocess.run(["ip", "netns", "add", taken], check=True)
    try:
        assert taken not in network.down().namespaces
        assert namespaces.exists(taken)
    finally:
        subprocess.run(["ip", "netns", "del", taken], check=True)


def test_clean_mends_every_step_of_making_a_namespace(names: Names) -> None:
    markers = namespaces.Markers(state.markers_dir(names))
    bare, unmade = names.host("h0"), names.host("h1")
    namespaces.create(names.fabric, markers)
    for name in (bare, unmade):
        markers.write(name, namespaces.Identity(0, 0))
    (namespaces.NETNS_DIR / bare).touch()  # as if mrclab was killed before it mounted on the file
    removed = clean(names)
    assert set(removed.namespaces) == {bare, names.fabric}
    assert leftovers(names) == []


def test_mininet_attaches_from_this_process(tiny: Fabric, names: Names) -> None:
    with FabricNetwork.up(tiny, names=names):
        net = attach(tiny, names=names)
        try:
            assert [host.name for host in net.hosts] == ["h0", "h1", "h2", "h3"]
            assert len(net.switches) == len(tiny.switches)
            assert len(net.links) == len(tiny.links)
            assert net["h0"].shell is None
            assert "h0-eth1" in net["h0"].cmd("ip -br link")
            assert "p1-t0-0-eth1" in net["p1-t0-0"].popen("ip -br link").communicate()[0].decode()
            assert net["p0-t0-0"].shell is None  # nothing has used the shell
            assert net.linksBetween(net["h0"], net["p0-t0-0"])[0].intf1.isUp()
            net.configLinkStatus("h0", "p0-t0-0", "down")
            assert not net.linksBetween(net["h0"], net["p0-t0-0"])[0].intf1.isUp()
        finally:
            net.stop()
        assert all(namespaces.exists(name) for name in names.of(tiny))
        with pytest.raises(InputError, match="another one: topology tiny"):
            attach(load_fabric("lab"), names=names)


def test_bmv2_keeps_its_interfaces_up(tiny: Fabric, names: Names) -> None:
    with FabricNetwork.up(tiny, names=names, target="bmv2"):
        net = attach(names=names)
        try:
            net.configLinkStatus("p0-t0-0", "p0-t1-0", "down")
            assert net["p0-t0-0"].intfs[3].isUp()
        finally:
            net.stop()


@pytest.mark.parametrize("from_stdin", [False, True])
def test_the_command_line_works_from_another_process(names: Names, tmp_path: Path, from_stdin: bool) -> None:
    lines = "h0 ip -br link\np0-t0-1 ip -br link show dev p0-t0-1-eth1\npy h1.namespace\nlinks\nexit\n"
    script = tmp_path / "script"
    script.write_text(lines)
    code = (
        "import sys\nfrom pathlib import Path\nfrom mrclab.testbed.names import Names\n"
        "from mrclab.testbed.network import attach\nfrom mrclab.testbed.mininet_classes import FabricCLI\n"
        "net = attach(names=Names(sys.argv[1], Path(sys.argv[2])))\n"
        "FabricCLI(net, script=sys.argv[3] if sys.argv[3:] else None)\nnet.stop()\n"
    )
    argv = [
        sys.executable,
        "-c",
        code,
        names.prefix,
        str(names.state_dir),
        *([] if from_stdin else [str(script)]),
    ]
    with _runner(names):
        told = subprocess.run(
            argv, input=lines if from_stdin else "", capture_output=True, text=True, timeout=60, check=True
        )
    assert "h0-eth0" in told.stdout + told.stderr
    assert "p0-t0-1-eth1" in told.stdout + told.stderr
    assert f"{names.prefix}-h1" in told.stdout + told.stderr
    assert "h0-eth0<->p0-t0-0-eth1 (OK OK)" in told.stdout + told.stderr
    clean(names)


def test_a_run_id_of_another_testbed_is_refused(tiny: Fabric, names: Names) -> None:
    with pytest.raises(InputError, match="must begin with"):
        FabricNetwork.up(tiny, names=names, run_id="other.1")


def test_down_leaves_a_successor_alone(tiny: Fabric, names: Names) -> None:
    first = FabricNetwork.up(tiny, names=names)
    record = state.require(names)
    state.write(names, replace(record, owner=Process(record.owner.pid, 0) if record.owner else None))
    with FabricNetwork.up(tiny, names=names):
        assert not first.down()
        assert namespaces.exists(names.fabric)


def test_what_a_detached_testbed_lives_by_may_take_it_down_itself(names: Names) -> None:
    with _runner(names, "daemon") as runner:
        removed = clean(names)
        assert runner.pid in [process.pid for process in removed.processes]
        assert runner.wait(10) == 128 + signal.SIGTERM  # SIGTERM ended it; no SIGKILL was needed
    assert leftovers(names) == []


@pytest.mark.slow
@pytest.mark.parametrize("delay_ms", range(0, 60, 4))
def test_clean_mends_a_kill_at_any_moment(tmp_path: Path, delay_ms: int) -> None:
    names = Names(f"t{os.urandom(4).hex()}", tmp_path / "state")
    with _runner(names, "hurry") as runner:
        time.sleep(delay_ms / 1000)  # to choose the moment of the signal, not to wait for a condition
        runner.kill()
    clean(names)
    assert left_in_the_end(names) == []
