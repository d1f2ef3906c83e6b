from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from mrclab.linux.errors import InputError, MachineError
from mrclab.linux.processes import Process
from mrclab.testbed import state
from mrclab.testbed.names import Names
from mrclab.testbed.state import State
from mrclab.topologies import Fabric, fabric_text

NOBODY = Process(2**22 + 1, 1)  # larger than any possible pid


@pytest.fixture
def names(tmp_path: Path) -> Names:
    return Names("t", tmp_path / "state")


def _record(fabric: Fabric, owner: Process | None) -> State:
    return State("t.1", fabric.name, fabric_text(fabric), state.now(), "ebpf", owner, (NOBODY,))


def test_a_record_comes_back_as_it_was(names: Names, tiny: Fabric) -> None:
    record = _record(tiny, Process.of(os.getpid(), "owner"))
    state.write(names, record)
    assert state.read(names) == record
    assert record.fabric() == tiny
    assert stat.S_IMODE(names.state_dir.stat().st_mode) == 0o711
    assert [path.name for path in names.state_dir.iterdir()] == ["state.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 99}', '{"schema": 2, "what": 2}'])
def test_a_record_that_makes_no_sense_counts_as_none(names: Names, text: str) -> None:
    names.state_dir.mkdir()
    state.state_file(names).write_text(text)
    assert state.read(names) is None
    with pytest.raises(InputError, match="no testbed is up"):
        state.require(names)


def test_an_owned_testbed_lives_as_long_as_its_owner(names: Names, tiny: Fabric) -> None:
    me = Process.of(os.getpid())
    assert _record(tiny, me).alive(names)
    assert not _record(tiny, Process(me.pid, me.start + 1)).alive(names)  # the pid of another process
    assert not _record(tiny, NOBODY).alive(names)


def test_a_detached_testbed_needs_its_namespace(names: Names, tiny: Fabric) -> None:
    assert not _record(tiny, None).alive(names)


def test_recording_a_process_drops_those_that_have_ended(tiny: Fabric) -> None:
    me = Process.of(os.getpid(), "me")
    assert _record(tiny, None).with_process(me).processes == (me,)


def test_the_lock_is_held_by_one_at_a_time_and_may_be_cleaned_away(names: Names) -> None:
    inside = most = finished = 0

    def work() -> None:
        nonlocal inside, most, finished
        for _ in range(100):
            with state.locked(names):
                inside += 1
                most = max(most, inside)
                inside -= 1
                state.forget(names)
        finished += 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, finished) == (1, 4)
    assert not names.state_dir.exists()


def test_forgetting_leaves_what_is_not_ours(names: Names, tiny: Fabric) -> None:
    state.write(names, _record(tiny, None))
    (names.state_dir / "somebody's").write_text("x")
    with state.locked(names):
        assert state.forget(names)
    assert [path.name for path in names.state_dir.iterdir()] == ["somebody's"]


def test_the_record_is_json_with_a_schema(names: Names, tiny: Fabric) -> None:
    state.write(names, _record(tiny, None))
    assert json.loads(state.state_file(names).read_text())["schema"] == state.SCHEMA


def test_a_record_that_is_not_for_us_to_read_is_no_absence(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_kwargs: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(MachineError, match=r"state.json is root's: run it as root \(sudo\)$"):
        state.require(names)
