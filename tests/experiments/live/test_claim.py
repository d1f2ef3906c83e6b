"""A run reserves its testbed's names until its last transport has ended. Until then, `up` refuses them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mrclab.experiments.live import engine
from mrclab.experiments.spec.scenario import load_scenario
from mrclab.linux.errors import InputError
from mrclab.linux.processes import environment
from mrclab.testbed import network
from mrclab.testbed.names import PREFIX_VARIABLE, Names
from mrclab.testbed.network import FabricNetwork
from mrclab.testbed.ownership import holders
from mrclab.topologies import load_fabric

HOLDER = """
import sys
from mrclab.testbed.ownership import claimed
from mrclab.testbed.names import Names
with claimed(Names.of_prefix(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def prefix(monkeypatch: pytest.MonkeyPatch) -> str:
    """Set a random prefix for the testbed's names, so that no other process uses the same names."""
    found = f"t{os.urandom(4).hex()}"
    monkeypatch.setenv(PREFIX_VARIABLE, found)
    return found


@pytest.mark.parametrize("fails", [False, True])
def test_the_names_are_held_until_the_last_transport_has_ended(
    prefix: str, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two transports of a comparison, `mrclab up` must not take the testbed's names."""
    held = []
    ended = []

    @contextmanager
    def session(scenario: Any, transport: Any, *_: Any) -> Iterator[Iterator[tuple[str, Any]]]:
        held.append(prefix in holders())
        yield iter(())
        held.append(prefix in holders())
        ended.append(transport.name)
        if fails and len(ended) == 3:
            raise InputError("enough")

    def look(_: object) -> None:
        held.append(prefix in holders())

    monkeypatch.setattr(engine, "_session", session)
    scenario = load_scenario("headline", target="ebpf")
    try:
        engine.run_scenario(scenario, tmp_path, engine.Outcome(), say=look, step=look)
    except InputError:
        assert fails
    assert len(ended) == (3 if fails else len(scenario.transports))
    assert len(held) == 4 * len(ended)
    assert all(held)
    assert prefix not in holders()


def test_a_fabric_is_not_brought_up_with_names_that_an_experiment_holds(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def goes_on(*_: object, **__: object) -> None:
        raise AssertionError("it goes on, and clears away what a testbed had left")

    monkeypatch.setattr(network, "require_machine", lambda: None)
    monkeypatch.setattr(network, "remove", goes_on)
    command = [sys.executable, "-c", HOLDER, prefix]
    with subprocess.Popen(
        command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=rf"an experiment holds the testbed.*process {holder.pid}"):
            FabricNetwork.up(load_fabric("tiny"), names=Names(prefix, tmp_path / "state"))
        holder.kill()
