"""Whole experiments as a user starts them, and their leftovers after every kind of ending."""

import json
import os
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mrclab.experiments.measure.pcap import read_pcap
from mrclab.experiments.result.model import result_schema
from mrclab.experiments.spec.scenario import load_scenario
from mrclab.linux import namespaces
from mrclab.testbed import clean, state
from mrclab.testbed.names import Names
from mrclab.topologies import load_fabric
from tests.support.command import Mrclab, Up, snapshot
from tests.support.goodput import goodputs_mbps
from tests.support.leftovers import kill_with_watchdog, left_in_the_end

pytestmark = [pytest.mark.root, pytest.mark.slow]

PATIENCE_S = 120
SLOWLY = ("--set", "workload.rate=20 Mbit/s")
"""A low rate. At the scenario's own rate the agents, which have real-time priority, leave almost no CPU time
for other processes on a busy machine."""


def run(mrclab: Mrclab, out: Path, *words: str) -> dict[str, Any]:
    mrclab.ok("run", "link-kill", "--target", "ebpf", "--out", str(out), *SLOWLY, *words)
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    jsonschema.validate(result, result_schema())
    return result


@dataclass(frozen=True)
class Run:
    out: Path
    result: dict[str, Any]


@pytest.fixture(scope="module")
def link_kill(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run four trials on `tiny`. Afterwards the machine must be as before the run."""
    runner = Mrclab(Names.of_prefix(f"t{os.urandom(3).hex()}"))
    out = tmp_path_factory.mktemp("link-kill") / "out"
    before = snapshot(runner.names)
    try:
        result = run(runner, out, "--topology", "tiny", "--trials", "4", "--seed", "5")
        assert snapshot(runner.names) == before
        return Run(out, result)
    finally:
        runner("clean")


def test_link_kill_recovers_every_byte(link_kill: Run) -> None:
    result = link_kill.result
    # A machine with no spare CPU repeats trials, and all of them are in the result.
    made = len(result["trials"])
    assert made == 4 or (made > 4 and not result["valid"])
    assert [trial["integrity"] for trial in result["trials"]] == ["ok"] * made
    assert result["bytes_delivered"] > 0
    assert result["target"] == "ebpf"
    recovered = [trial for trial in result["trials"] if trial["lost_packets"]]
    assert recovered, "no fault hit a packet"
    for trial in recovered:
        assert trial["rerouted_us"] > 0
        assert 0 < trial["detected_us"] <= trial["recovered_us"]
        assert trial["retransmitted_packets"] >= trial["lost_packets"]
        assert trial["fault"]["t_before_ns"] < trial["fault"]["t_after_ns"]
    for host in ("h0", "h2"):
        for name in (f"captures/{host}.pcap", f"events/{host}.jsonl", "faults.json"):
            assert (link_kill.out / "mrc-0" / name).stat().st_size > 0
    assert list(link_kill.out.glob("*.svg"))


def test_goodput_agrees_with_the_captures_within_one_percent(link_kill: Run) -> None:
    found, captured = goodputs_mbps(link_kill.out, link_kill.result, "h2")
    assert found == pytest.approx(captured, rel=0.01)


def test_wide_sprays_over_all_256_paths(mrclab: Mrclab, tmp_path: Path, machine: None) -> None:
    result = run(mrclab, tmp_path / "out", "--topology", "wide", "--trials", "1")
    assert (
        result["integrity"] == "ok"
    )  # a slow machine sends so little over 256 paths that the cut may hit no packet
    packets = read_pcap(tmp_path / "out" / "mrc-0" / "captures" / "h0.pcap")
    sent = packets.rows[packets.is_data]
    used = {
        int(hi).to_bytes(8, "big") + int(lo).to_bytes(8, "big")
        for hi, lo in zip(sent["outer_hi"], sent["outer_lo"], strict=True)
    }
    fabric = load_fabric("wide")
    paths = fabric.paths(*load_scenario("link-kill").placement(fabric, 1).hosts)
    unused = [path.ev for path in paths if path.outer_dst.packed not in used]
    assert not unused, f"{len(unused)} of {len(paths)} unused by {len(sent)} packets"
    assert len(paths) == 256


def start(mrclab: Mrclab, out: Path) -> "subprocess.Popen[bytes]":
    """Start an experiment that would run for long, and wait until its first trial has ended."""
    words = ("run", "link-kill", "--topology", "tiny", "--target", "ebpf", "--trials", "5000", *SLOWLY)
    command = mrclab.command(*words)
    said = out.parent / "said"
    with open(said, "wb") as file:
        process = subprocess.Popen(
            [*command, "--out", str(out)], env=mrclab.environment, stdout=file, stderr=file
        )
    deadline = time.monotonic() + PATIENCE_S
    while not re.search(r"[1-9]\d* of 5000 trials|made again", said.read_text()):
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < deadline
        select_nothing(0.05)
    return process


def select_nothing(timeout_s: float) -> None:
    """Wait a moment before the test reads a file again."""
    signal.sigtimedwait([], timeout_s)


def test_clean_removes_all_that_a_killed_runner_leaves(mrclab: Mrclab, tmp_path: Path, machine: None) -> None:
    process = start(mrclab, tmp_path / "out")
    found = state.read(mrclab.names)
    assert found is not None
    assert found.owner is not None
    kill_with_watchdog(mrclab.names, found.owner.pid)
    process.kill()
    process.wait()
    refused = mrclab("status")
    assert refused.returncode == 2
    assert "'mrclab clean' lists and removes what is left" in refused.stderr
    said = mrclab.ok("clean")
    assert "removed" in said
    assert f"network namespace {mrclab.names.fabric}\n" in said
    assert "nothing to clean" in mrclab.ok("clean")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])  # test_network.py tests SIGTERM too
def test_a_signal_ends_an_experiment_tidily(
    mrclab: Mrclab, tmp_path: Path, machine: None, number: signal.Signals
) -> None:
    process = start(mrclab, tmp_path / "out")
    process.send_signal(number)
    process.send_signal(number)  # users may press Ctrl-C again and again
    assert process.wait(PATIENCE_S) == 128 + number
    assert "nothing to clean" in mrclab.ok("clean")
    said = (tmp_path / "said").read_text()
    assert (tmp_path / "out" / "result.json").exists(), said
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["unfinished"]
    assert not result["valid"]
    assert "Traceback" not in said
    how = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
    assert f"mrclab: {how}" in said.splitlines()


def test_a_killed_runner_leaves_nothing_but_its_result(mrclab: Mrclab, tmp_path: Path, machine: None) -> None:
    process = start(mrclab, tmp_path / "out")
    process.kill()
    process.wait()
    assert left_in_the_end(mrclab.names) == []
    assert "nothing to clean" in mrclab.ok("clean")
    mrclab.ok("report", str(tmp_path / "out"))
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert "0 of 1 repetitions" in result["validity"]["reasons"][0]


def test_an_experiment_says_by_whom_its_testbed_was_taken(
    mrclab: Mrclab, tmp_path: Path, machine: None
) -> None:
    process = start(mrclab, tmp_path / "out")
    refused = mrclab("down")
    assert refused.returncode == 2
    assert "run link-kill" in refused.stderr
    assert "--force" in refused.stderr
    assert process.poll() is None
    mrclab.ok("down", "--force")
    assert process.wait(PATIENCE_S) == 1
    said = (tmp_path / "said").read_text()
    assert "the testbed was taken down by 'mrclab down --force' of" in " ".join(said.split())


def test_a_switch_server_that_is_killed_ends_a_run_with_its_reason(
    mrclab: Mrclab, tmp_path: Path, machine: None
) -> None:
    process = start(mrclab, tmp_path / "out")
    found = state.read(mrclab.names)
    assert found is not None
    (server,) = (p.pid for p in found.processes)
    os.kill(server, signal.SIGKILL)
    assert process.wait(PATIENCE_S) == 1
    last = (tmp_path / "said").read_text().splitlines()[-1]
    why = f"the switch server (process {server}) was ended by SIGKILL"
    assert last == f"mrclab: mrc: {why}"
    assert json.loads((tmp_path / "out" / "result.json").read_text())["unfinished"]


def test_the_next_up_clears_away_what_a_killed_runner_left(
    mrclab: Mrclab, tmp_path: Path, machine: None
) -> None:
    process = start(mrclab, tmp_path / "out")
    found = state.read(mrclab.names)
    assert found is not None
    assert found.owner is not None
    kill_with_watchdog(mrclab.names, found.owner.pid)
    process.kill()
    process.wait()
    mrclab.ok("up", "--topology", "tiny", "--target", "ebpf")
    assert len(mrclab.status()["switches"]) == 8
    mrclab.ok("down")


def test_one_testbed_at_a_time(tiny: Up, tmp_path: Path) -> None:
    for words in (["up"], ["run", "link-kill", "--target", "ebpf", "--out", str(tmp_path / "out")]):
        refused = tiny.mrclab(*words)
        assert refused.returncode == 2
        assert "run 'mrclab down' first" in refused.stderr
        assert refused.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert "p0-t0-0" in tiny.mrclab.status()["switches"]


def test_mininets_prompt_reaches_hosts_and_switches(tiny: Up) -> None:
    said = tiny.mrclab("cli", input="h0 ip -o link\np0-t1-1 ip -o link show p0-t1-1-eth2\nexit\n")
    assert said.returncode == 0, said.stderr
    output = said.stdout + said.stderr  # Mininet writes the output of commands to stderr
    assert "h0-eth1" in output
    assert "p0-t1-1-eth2" in output


def test_a_fault_is_refused_where_there_is_no_such_link(tiny: Up) -> None:
    refused = tiny.mrclab("fault", "blackhole", "p0-t0-0:p1-t1-0")
    assert refused.returncode == 2
    said = "mrclab: no link 'p0-t0-0:p1-t1-0' in tiny: give a link, such as p0-t0-0:p0-t1-1\n"
    assert refused.stderr == said
    again = tiny.mrclab("restore", "p0-t0-0:p0-t1-0")
    assert again.returncode == 2
    assert "has no fault to undo" in again.stderr


def test_nobody_is_left_holding_our_descriptors(mrclab: Mrclab, machine: None) -> None:
    """A reader of the output of `mrclab up` must see the output's end. No process may hold the pipe."""
    read_fd, write_fd = os.pipe()
    subprocess.run(
        mrclab.command("up", "--topology", "tiny", "--target", "ebpf"),
        env=mrclab.environment,
        stdout=write_fd,
        stderr=write_fd,
        check=True,
        timeout=PATIENCE_S,
    )
    os.close(write_fd)
    with os.fdopen(read_fd) as said:
        assert "up:" in said.read()
    assert mrclab.ok("down") == "down: everything is gone\n"


def test_perf_over_a_dead_network_ends_with_one_line(tiny: Up) -> None:
    try:
        for plane in range(2):
            tiny.mrclab.ok("fault", "blackhole", f"h1:p{plane}-t0-0")
        with ThreadPoolExecutor() as pool:  # run both at once, because a transport fails late
            tests = ("write_bw", "h1", "h3"), ("write_lat", "h3", "h1")
            for done in pool.map(
                lambda t: tiny.mrclab("perf", t[0], "--from", t[1], "--to", t[2], "-n", "10"), tests
            ):
                assert done.returncode == 1
                assert "Retry Counter Exceeded" in done.stderr
                assert done.stderr.count("\n") == 1
    finally:
        tiny.mrclab.ok("restore", "--all")


def test_a_stopped_agent_spoils_its_trial_and_is_named(mrclab: Mrclab, tmp_path: Path, machine: None) -> None:
    """The test stops an agent by a signal, and lets it continue. mrclab must report the time of the stop."""
    process = start(mrclab, tmp_path / "out")
    space = namespaces.identity(mrclab.names.host("h2"))
    (receiver,) = (
        process
        for process in clean.testbed_processes(mrclab.names, ())
        if "mrclab.hosts.agent" in process.what
        and os.stat(f"/proc/{process.pid}/ns/net").st_ino == space.inode
    )
    os.kill(receiver.pid, signal.SIGSTOP)
    select_nothing(0.3)
    os.kill(receiver.pid, signal.SIGCONT)
    select_nothing(3.0)  # the trial ends in this time
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE_S)
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    said = [*result["validity"]["reasons"], *result["validity"]["notes"]]
    assert any("receiver stood still for" in line for line in said), "\n".join(said)
