"""Clustermapper on a running fabric: it names the broken part, and hosts send nothing there."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.forged_frames import send_all
from mrclab.hosts.clustermapper.denylist import Denylist, denied_evs
from mrclab.hosts.clustermapper.probes import ProbePlan
from mrclab.testbed.clustermapper import ClustermapperProcess, denylist_file
from mrclab.testbed.network import FabricNetwork
from mrclab.topologies import load_fabric
from tests.support.command import Mrclab, Up

pytestmark = pytest.mark.root
PATIENCE_S = 20.0
TINY = load_fabric("tiny")


@pytest.fixture
def mapper(tiny: Up, tmp_path: Path) -> Iterator[ClustermapperProcess]:
    network = FabricNetwork.attached(tiny.mrclab.names)
    with ClustermapperProcess(network, tmp_path / "events.jsonl") as process:
        await_event(process, "probing")
        yield process


def await_event(mapper: ClustermapperProcess, name: str, place: str | None = None) -> dict[str, object]:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        for event in mapper.events():
            if event["event"] == name and place in (None, event.get("place")):
                return event
        time.sleep(0.01)
    raise AssertionError(f"no {name} of {place}: {mapper.events()}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (("blackhole", "p0-t0-0:p0-t1-1", "--direction", "up"), "dead"),
        (("carrier", "h1:p0-t0-0"), "dead"),
        (("switch-death", "p1-t1-1"), "dead"),
        (("loss", "p0-t0-1:p0-t1-1", "--ratio", "0.05"), "loss"),
    ],
)
def test_what_is_broken_is_named_denied_and_cleared(
    tiny: Up, mapper: ClustermapperProcess, fault: tuple[str, ...], cause: str
) -> None:
    place = fault[1]
    tiny.mrclab.ok("fault", *fault)
    try:
        assert await_event(mapper, "verdict", place)["cause"] == cause
        denied = Denylist.load(denylist_file(tiny.mrclab.names))
        assert denied.links == {
            link.name for link in TINY.links if place in (link.name, *link.name.split(":"))
        }
    finally:
        tiny.mrclab.ok("restore", place)
    await_event(mapper, "cleared", place)
    assert [e["place"] for e in mapper.events() if e["event"] == "verdict"] == [place]
    assert Denylist.load(denylist_file(tiny.mrclab.names)).links == frozenset()


@pytest.mark.slow
def test_forged_answers_neither_hide_a_fault_nor_hold_the_prober(
    tiny: Up, mapper: ClustermapperProcess
) -> None:
    """While a link above h0 is dead, h1 sends probes with guessed IDs to h0, as fast as it can."""
    fabric, link = tiny.fabric, "p0-t0-0:p0-t1-1"
    to_h0 = next(r for r in ProbePlan(fabric).routes if (r.host, r.plane, len(r.links)) == ("h0", 0, 1))
    guessed = [to_h0.probe(number) for number in range(100_000)]
    tiny.mrclab.ok("fault", "blackhole", link)
    try:
        send_all(tiny, "h1", guessed, len(guessed))
        assert await_event(mapper, "verdict", link)["cause"] == "dead"
    finally:
        tiny.mrclab.ok("restore", link)
    await_event(mapper, "cleared", link)


def test_the_command_says_what_it_finds_and_leaves_no_denylist(tiny: Up) -> None:
    link = "p0-t0-0:p0-t1-0"
    command = tiny.mrclab.command("clustermapper", "--json", "--for", "20 s")
    with subprocess.Popen(command, env=tiny.mrclab.environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "probing"
        tiny.mrclab.ok("fault", "blackhole", link)
        try:
            events = (json.loads(line) for line in process.stdout)
            assert next(e for e in events if e["event"] == "verdict")["place"] == link
            # Hosts that start now must not send over the dead link.
            before = tiny.mrclab.status()["switches"]["p0-t0-0"]["counters"]["drops"]
            tiny.mrclab.ok("perf", "write_bw", "--from", "h0", "--to", "h2", "-n", "20", "-s", "100000")
            after = tiny.mrclab.status()["switches"]["p0-t0-0"]["counters"]["drops"]
            grown = after["fault_egress"]["bytes"] - before["fault_egress"]["bytes"]
            dropped = after["fault_egress"]["packets"] - before["fault_egress"]["packets"]
            assert grown <= 100 * dropped, "only probes, which are short, went there"
        finally:
            tiny.mrclab.ok("restore", link)
        process.terminate()
        process.stdout.read()  # keep reading: the process fails if its output is not read
    assert process.returncode == 0
    assert not denylist_file(tiny.mrclab.names).exists()


def test_bad_input_is_one_line(mrclab: Mrclab) -> None:
    for words, said in (
        (("--interval", "1 us"), "must be at least 100 us"),
        (("--for", "ever"), "a time such as"),
        ((), "no testbed"),
    ):
        refused = mrclab("clustermapper", *words)
        assert refused.returncode == 2
        assert said in refused.stderr
        assert refused.stderr.count("\n") == 1


def test_denied_links_deny_the_evs_of_their_paths() -> None:
    paths = TINY.paths("h0", "h2")
    assert denied_evs(paths, ()) == ()
    assert denied_evs(paths, ["p0-t0-1:p0-t1-1"]) == (paths[1].ev,)
    assert denied_evs(paths, ["h2:p1-t0-1"]) == tuple(p.ev for p in paths if p.plane == 1)


OWNER = """
import os, signal, sys
from pathlib import Path
from mrclab.testbed.clustermapper import ClustermapperProcess
from mrclab.testbed.names import Names
from mrclab.testbed.network import FabricNetwork

network = FabricNetwork.attached(Names.of_prefix(sys.argv[1]))
with ClustermapperProcess(network, Path(sys.argv[2])) as process:
    print(process._process.pid, flush=True)
    sys.stdin.read()
"""


def test_it_ends_when_what_started_it_is_killed(tiny: Up, tmp_path: Path) -> None:
    """Clustermapper has real-time priority. If it were left running, it would use a third of a CPU."""
    command = [sys.executable, "-c", OWNER, tiny.mrclab.names.prefix, str(tmp_path / "events.jsonl")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        mapper = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
    mapper.wait(PATIENCE_S)
