"""A run finds the changes that others make to its fabric. It ignores the changes by its own faults."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrclab.experiments.live.disturbances import Strangers
from mrclab.faults.kinds import Fault
from mrclab.testbed.lab import Lab
from mrclab.testbed.names import Names
from mrclab.topologies import load_fabric
from tests.support.paths import ROOT

pytestmark = [pytest.mark.root, pytest.mark.slow]
LINK = "p0-t0-0:p0-t1-1"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    names = Names(f"t{os.urandom(4).hex()}", tmp_path / "state")
    with Lab.up(load_fabric("tiny"), "ebpf", tmp_path / "logs", names=names) as lab:
        yield lab


def run(lab: Lab, namespace: str, *words: str) -> str:
    command = ["ip", "netns", "exec", namespace, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_what_others_change_is_found(lab: Lab) -> None:
    names = lab.network.names
    with Strangers(lab) as strangers:
        lab.faults.apply(Fault("blackhole", LINK))
        lab.faults.undo(LINK)
        assert strangers.changes(["blackhole"]) == ()
        for verb in ("replace", "del"):
            run(lab, names.host("h0"), "tc", "qdisc", verb, "dev", "h0-eth1", "root", "pfifo")
        (found,) = strangers.changes(["blackhole"])
        assert found.startswith("others changed the fabric during the run: the queues or filters of h0-eth1")
        run(lab, names.fabric, "ip", "link", "set", "p0-t1-0-eth1", "down")
        (found,) = strangers.changes([])
        assert "p0-t1-0-eth1 was taken down" in found
        run(lab, names.fabric, "ip", "link", "set", "p0-t1-0-eth1", "up")
        assert strangers.changes(["carrier"]) == ()


def test_a_route_of_another_client_is_found(lab: Lab) -> None:
    with Strangers(lab) as strangers:
        address = run(lab, lab.network.names.fabric, "ss", "-Hlnt").split()[3]
        script = str(ROOT / "benchmarks/kit/wrong_route.py")
        run(lab, lab.network.names.fabric, sys.executable, script, address)
        (found,) = strangers.changes([])
        assert "p0-t0-0: 1 changed (next_hop " in found
