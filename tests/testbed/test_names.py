from __future__ import annotations

from pathlib import Path

import pytest

from mrclab.linux.errors import InputError
from mrclab.testbed.names import Names, switch_ports
from mrclab.topologies import Fabric


def test_the_usual_names(tiny: Fabric) -> None:
    names = Names.from_environment({})
    assert names == Names("mrclab", Path("/run/mrclab"))
    assert names.of(tiny) == ("mrclab", "mrclab-h0", "mrclab-h1", "mrclab-h2", "mrclab-h3")


def test_the_environment_gives_another_prefix() -> None:
    assert Names.from_environment({"MRCLAB_PREFIX": "other"}) == Names("other", Path("/run/other"))


@pytest.mark.parametrize("prefix", ["mrclab\n", "", "../x", "a b", "Lab", "9lives", "a" * 40])
def test_an_unusable_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(InputError, match="no prefix"):
        Names(prefix)


def test_run_ids_tell_testbeds_apart() -> None:
    names, other = Names("lab"), Names("lab2")
    run = names.new_run_id()
    assert names.owns_run(run)
    assert not other.owns_run(run)
    assert not names.owns_run(other.new_run_id())
    assert run != names.new_run_id()


def test_switch_ports(tiny: Fabric) -> None:
    ports = switch_ports(tiny)
    assert len(ports) == len(tiny.switches)
    assert ports["p1-t1-0"] == {1: "p1-t1-0-eth1", 2: "p1-t1-0-eth2"}
