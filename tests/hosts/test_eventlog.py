"""Writing the event log: no event is lost or reordered, and its size has a limit."""

import dataclasses
import json
import signal
import typing
from enum import Enum
from pathlib import Path

import pytest

from mrclab.hosts import eventlog
from mrclab.hosts.eventlog import BUFFER_EVENTS, EventLog, LogFile, pack, unpack
from mrclab.hosts.mrc.events import EvSkipped
from mrclab.hosts.rdma.events import Event, ReceiveCompleted, SendCompleted, Status


def sample(kind: type[Event]) -> Event:
    """Return an event of that kind with a value in every field."""
    values: list[object] = []
    for number, field in enumerate(dataclasses.fields(kind)):
        hint = typing.get_type_hints(kind)[field.name]
        if isinstance(hint, type) and issubclass(hint, Enum):
            values.append(list(hint)[-1])
        else:
            values.append({bool: True, str: 'a "word"', int: 10**15 + number}.get(hint))
    return kind(*values)  # type: ignore[arg-type]


def test_every_kind_of_event_survives_the_way_to_the_writer() -> None:
    batch = [sample(kind) for kind in eventlog.CATEGORY]
    assert unpack(pack(batch)) == batch


def lines(path: Path) -> list[dict[str, typing.Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def skipped(t_ns: int) -> EvSkipped:
    return EvSkipped(t_ns, 1, 2, 3, True)


@pytest.mark.slow
def test_a_log_is_complete_and_in_order_when_it_is_closed(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "h0.jsonl", "h0", now_ns=5)
    for n in range(10_000):
        log.add(skipped(5 + n), n)
        log.hand_over(n)
    log.close()
    assert (log.written, log.lost) == (10_000, 0)
    header, *records = lines(tmp_path / "h0.jsonl")
    assert header["trace"]["vantage_point"]["name"] == "h0"
    assert [round(r["time"] * 1e6) for r in records] == list(range(10_000))


def test_events_wait_for_a_batch_but_not_for_long(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "h0.jsonl", "h0", now_ns=0)
    assert log.next_due() is None
    log.add(skipped(1), 1)
    log.hand_over(2)
    assert log.written == 0
    assert log.next_due() == 1 + eventlog.FLUSH_NS
    log.hand_over(1 + eventlog.FLUSH_NS)
    assert log.written == 1
    assert log.next_due() is None
    log.close()


def test_completions_may_be_left_out(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "h0.jsonl", "h0", now_ns=0, completions=False)
    log.add(SendCompleted(1, 1, 1, Status.SUCCESS, 8), 1)
    log.add(ReceiveCompleted(1, 1, 1, 8, 1), 1)
    log.add(skipped(1), 1)
    log.close()
    assert [r["name"] for r in lines(tmp_path / "h0.jsonl")[1:]] == ["mrc:path:ev_skipped"]


def test_a_full_buffer_costs_events_which_are_counted_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eventlog, "BUFFER_EVENTS", 10)
    log = EventLog(tmp_path / "h0.jsonl", "h0", now_ns=0)
    for n in range(25):
        log.add(skipped(n), n)
    log.close()
    assert (log.written, log.lost) == (10, 15)
    last = lines(tmp_path / "h0.jsonl")[-1]
    assert last == {"name": "mrc:log:events_lost", "data": {"count": 15}}
    assert BUFFER_EVENTS >= 1 << 14


def test_a_writer_that_died_stops_nobody(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "h0.jsonl", "h0", now_ns=0)
    log._writer.kill()
    log._writer.wait()
    for n in range(1000):
        log.add(skipped(n), n)
        log.hand_over(n)
    log.close()
    assert log.lost == 1000


@pytest.mark.slow
def test_a_writer_that_is_behind_does_not_cost_a_batch_packed_for_every_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EventLog(tmp_path / "h0.jsonl", "h0", now_ns=0)
    log._writer.send_signal(signal.SIGSTOP)
    packed = []
    monkeypatch.setattr(eventlog, "pack", lambda batch: packed.append(0) or pack(batch))
    n = 0
    while log._blocked_until_ns == 0:
        log.add(skipped(n), n)
        log.hand_over(n)
        n += 1
    packed.clear()
    for n in range(n, n + 1000):  # noqa: B020
        log.add(skipped(n), n)
        log.hand_over(n)
    assert len(packed) <= 1
    log._writer.send_signal(signal.SIGCONT)
    log.close()
    assert (log.written, log.lost) == (n + 1, 0)


def test_only_so_much_of_a_long_log_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "h0.jsonl"
    file = LogFile(path, "h0", 0, keep_bytes=20_000)
    for n in range(3_000):
        file.write([skipped(n)])
    file.close()
    files = [path.with_name("h0.jsonl.1"), path]
    assert sum(f.stat().st_size for f in files) < 22_000
    times = [round(r["time"] * 1e6) for f in files for r in lines(f)[1:]]
    assert times == list(range(times[0], 3_000))
    assert len(times) > 60
