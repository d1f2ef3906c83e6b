from __future__ import annotations

from pathlib import Path

import pytest

from mrclab.experiments.measure.events import Event, load_events
from mrclab.hosts.eventlog import LogFile
from mrclab.hosts.mrc.events import EvRetired, RetireReason
from mrclab.hosts.rdma.events import SendCompleted, Status
from mrclab.linux.errors import InputError
from tests.support.synthetic_run import log_text

HEADER = log_text([]).rstrip("\n")


def test_events_are_read_in_order_of_time_and_unknown_ones_kept(tmp_path: Path) -> None:
    log = tmp_path / "sender.jsonl"
    log.write_text(log_text([Event(20, "EvRetired", {"ev": 5}), Event(10, "Novel", {"x": [1]})]) + "\n")
    events = load_events(log)
    assert [(e.t_ns, e.name) for e in events.events] == [(10, "Novel"), (20, "EvRetired")]
    assert events.of("EvRetired")[0].int_field("ev") == 5
    assert events.of("EvRetired")[0].int_field("plane") is None
    assert events.between("EvRetired", 20, 21)
    assert not events.between("EvRetired", 0, 20)
    assert events.of("Nothing") == ()


@pytest.mark.parametrize("start_ns", [0, 1, 10**14 + 1])
def test_what_an_agent_writes_is_read_back_to_the_nanosecond(tmp_path: Path, start_ns: int) -> None:
    log = tmp_path / "h0.jsonl"
    times = [start_ns + 7 + n * 999_999_937 * 3600 // 50 for n in range(50)]  # spread over an hour
    file = LogFile(log, "h0", start_ns)
    file.write(EvRetired(t, 3, 5, 1, RetireReason.ALWAYS_SKIP, None) for t in times)
    file.write([SendCompleted(times[-1], 3, 9, Status.REMOTE_ACCESS_ERROR, 8)])
    file.close(lost=4)
    events = load_events(log)
    assert [e.t_ns for e in events.of("EvRetired")] == times
    assert events.events[0].fields == {"qpn": 3, "ev": 5, "plane": 1, "reason": "always_skip", "psn": None}
    assert events.of("SendCompleted")[0].fields["status"] == "remote_access_error"
    assert len(events.events) == 51, "what is missing is no event"


def test_the_broken_last_line_of_a_killed_agent_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "sender.jsonl"
    log.write_text(log_text([Event(1, "A", {})]) + '{"time": 2, "ev')
    assert len(load_events(log).events) == 1
    log.write_text(HEADER[:20])
    assert load_events(log).events == ()


def test_what_is_no_text_is_refused_with_its_file(tmp_path: Path) -> None:
    log = tmp_path / "sender.jsonl"
    log.write_bytes(f"{HEADER}\n".encode() + b'{"time": 1, "name": "a:b:\xff", "data": {}}\n')
    with pytest.raises(InputError, match=r"sender\.jsonl: .* not UTF-8"):
        load_events(log)


@pytest.mark.parametrize(
    "line",
    ["nonsense", "[1]", '{"name": "a:b:c", "data": {}}', '{"time": "1", "name": "a:b:c", "data": {}}',
     '{"time": 1, "name": "a", "data": {}}', '{"time": 1, "name": "a:b:c", "data": 3}', "3", "null",
     '{"time": 1e400, "name": "a:b:c", "data": {}}', "[" * 100_000],
)  # fmt: skip
def test_anything_else_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    log = tmp_path / "sender.jsonl"
    log.write_text(f"{HEADER}\n{line}\n")
    with pytest.raises(InputError) as caught:
        load_events(log)
    assert str(caught.value).startswith(f"{log}:2: ")
    log.write_text(f"{line}\n")
    with pytest.raises(InputError, match="not the header"):
        load_events(log)
    with pytest.raises(InputError, match="cannot read the event log"):
        load_events(tmp_path / "none")
