"""Who owns a testbed, who may take it over, and which message its owner gets."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from mrclab.linux.errors import InputError
from mrclab.linux.processes import Process
from mrclab.testbed import ownership, state
from mrclab.testbed.after_owner import remove_dead
from mrclab.testbed.names import Names
from mrclab.testbed.network import refuse_second
from mrclab.testbed.state import State
from mrclab.topologies import Fabric, fabric_text

NOBODY = Process(2**22 + 1, 1, "mrclab run link-kill")


@pytest.fixture
def names(tmp_path: Path) -> Names:
    return Names("t", tmp_path / "state")


@pytest.fixture
def record(names: Names, tiny: Fabric) -> State:
    me = Process.of(os.getpid(), "mrclab run link-kill")
    found = State("t.1", "tiny", fabric_text(tiny), state.now(), "ebpf", me, user=ownership.user())
    state.write(names, found)
    return found


def test_an_experiment_is_not_disturbed_without_force(names: Names, record: State) -> None:
    with pytest.raises(InputError, match=r"'mrclab run link-kill' of \S+ \(process \d+\).*--force"):
        ownership.require_ours(names, force=False)
    assert ownership.require_ours(names, force=True) == record


def test_what_stays_is_its_users_own(names: Names, record: State) -> None:
    state.write(names, replace(record, stays=True))
    assert ownership.require_ours(names, force=False).stays
    state.write(names, replace(record, stays=True, user="anna"))
    with pytest.raises(InputError, match="of anna"):
        ownership.require_ours(names, force=False)
    with pytest.raises(InputError, match="of anna"):
        refuse_second(names)


def test_the_owner_hears_who_takes_its_testbed(names: Names, record: State) -> None:
    assert ownership.taken(names, record.run_id) == ""
    ownership.take(names, record)
    assert f"of {ownership.user()} (process {os.getpid()})" in ownership.taken(names, record.run_id)
    assert ownership.taken(names, "t.2") == ""


def test_who_comes_later_hears_of_a_testbed_that_another_took(names: Names, record: State) -> None:
    theirs = replace(record, stays=True, user="anna")
    state.write(names, theirs)
    ownership.take(names, theirs)
    with state.locked(names):
        state.forget(names)
    with pytest.raises(InputError, match=r"no testbed is up: run 'mrclab up' first \(that of anna was taken"):
        state.require(names)


def test_a_testbed_whose_owner_was_killed_is_named_with_its_mend(names: Names, record: State) -> None:
    state.write(names, replace(record, owner=NOBODY))
    with pytest.raises(InputError, match=r"the owner of the last .* has ended; 'mrclab clean'"):
        state.require(names)


def test_sudo_says_who_the_user_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "anna")
    assert ownership.user() == "anna"


def test_forgetting_names_what_it_removed(names: Names, record: State) -> None:
    state.control_socket(names).touch()
    with state.locked(names):
        removed = state.forget(names)
    assert removed == [str(state.state_file(names)), str(state.control_socket(names))]
    assert not names.state_dir.exists()


def test_a_watchdog_that_comes_late_leaves_no_lock(names: Names) -> None:
    """When the watchdog begins, the owner has already removed the whole testbed."""
    with state.locked(names):
        pass
    assert names.state_dir.exists()
    assert not remove_dead(names, "t.1")
    assert not names.state_dir.exists()


def test_a_watchdog_leaves_alone_what_lives_or_is_anothers(names: Names, record: State) -> None:
    assert not remove_dead(names, record.run_id)
    state.write(names, replace(record, owner=NOBODY))
    assert not remove_dead(names, "t.2")
    assert state.read(names) is not None
