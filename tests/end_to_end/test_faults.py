"""The commands that make and undo faults, on a running fabric."""

import json
import os
import re

import pytest

from mrclab.faults.kinds import KINDS
from tests.support.command import Mrclab, Up

pytestmark = pytest.mark.root
LINK = "p0-t0-0:p0-t1-0"


@pytest.mark.slow
def test_faults_are_told_made_shown_undone_and_cleaned_away(mrclab: Mrclab, machine: None) -> None:
    assert all(kind in mrclab.ok("fault") for kind in KINDS)
    mrclab.ok("up", "--topology", "tiny", "--target", "ebpf")
    said = mrclab.ok("fault", "loss", LINK, "--ratio", "0.25", "--direction", "up")
    assert re.search(r" at \d\d:\d\d:\d\d\.\d{6} \+- [\d.]+ us \(stamped", said)
    assert "stamped by the switch" in said
    mrclab.ok("fault", "switch-death", "p1-t1-0")
    shown = mrclab.ok("status")
    assert f"fault: {LINK} loss 25.0000% (up)" in shown
    assert "not answering" in shown
    assert mrclab.status()["faults"]["p1-t1-0"]["kind"] == "switch-death"
    for words, said in (
        (("loss", LINK), "is faulty already"),
        (("loss", "p1-t0-0:p1-t1-0"), "p1-t1-0 is dead already"),
        (("loss",), "where? loss breaks a link"),
        (("typo", LINK), "choose blackhole"),
        (("flap", LINK, "--period", "soon"), "must be a time such as"),
        (("blackhole", LINK, "--ratio", "0.5"), "no use for --ratio"),
    ):
        refused = mrclab("fault", *words)
        assert refused.returncode == 2
        assert said in refused.stderr
        assert refused.stderr.count("\n") == 1
    assert mrclab("restore").returncode == 2
    assert "restored p1-t1-0" in mrclab.ok("restore", "--all")
    status = mrclab.status()
    assert status["faults"] == {}
    assert status["switches"]["p1-t1-0"]["programmed"] == 2
    assert all(switch["drift"] is None for switch in status["switches"].values())
    # `down` also removes faults that are still in force.
    for kind, where in (("flap", LINK), ("carrier", "p1-t0-0:p1-t1-1"), ("plane-death", "p0")):
        done = mrclab("fault", kind, where)
        assert done.returncode == 0, done.stderr
    mrclab.ok("clean")
    assert [n for n in os.listdir("/run/netns") if n.startswith(mrclab.names.prefix)] == []
    assert not mrclab.names.state_dir.exists()


def test_a_link_taken_down_at_the_prompt_shows(tiny: Up) -> None:
    assert "port " not in tiny.mrclab.ok("status")
    try:
        tiny.mrclab("cli", input="link p0-t0-0 p0-t1-0 down\nexit\n")
        shown = tiny.mrclab.ok("status")
        assert "port p0-t0-0-eth3: down" in shown
        assert "as programmed, 1 port not up" in shown
        assert tiny.mrclab.status()["ports"]["p0-t1-0-eth1"] == "down"
    finally:
        tiny.mrclab("cli", input="link p0-t0-0 p0-t1-0 up\nexit\n")
    assert set(tiny.mrclab.status()["ports"].values()) == {"up"}


def test_hosts_without_addresses_say_so_instead_of_failing_to_ping(tiny: Up) -> None:
    said = tiny.mrclab("cli", input="h0 ping -c 1 h3\nh0 ping6 -c 1 h3\nexit\n")
    output = said.stdout + said.stderr
    assert output.count("the hosts' kernels have no address") == 2
    assert "probe h0 h3" in output
    assert "not known" not in output


def test_the_prompt_survives_mistakes_and_has_the_fabrics_commands(tiny: Up) -> None:
    lines = ["dpctl dump-flows", "source /nowhere", "switch p0-t0-0 stop", "px 1/0", "help", "pingall"]
    lines += [f"fault blackhole {LINK}", "status", "restore --all", "probe h0 h3", "exit"]
    said = tiny.mrclab("cli", input="\n".join(lines) + "\n")
    output = said.stdout + said.stderr
    assert said.returncode == 0, output
    assert "have no OpenFlow" in output
    assert "no file /nowhere" in output
    assert "switch-death" in output
    assert "a path probe between all pairs" in output
    assert "*** Results: 0% dropped (12/12 received)" in output
    assert f"restored {LINK}" in output
    assert "h0 > p0-t0-0 >" in output


def test_stamps_of_a_fault_for_programs(tiny: Up) -> None:
    made = json.loads(tiny.mrclab.ok("fault", "blackhole", LINK, "--json"))
    undone = json.loads(tiny.mrclab.ok("restore", LINK, "--json"))["restored"][LINK]
    assert made["t_before_ns"] < made["t_after_ns"] < undone["t_before_ns"] < undone["t_after_ns"]
    assert made["fault"]["where"] == LINK
