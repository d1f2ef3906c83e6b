from __future__ import annotations

from pathlib import Path

import pytest

from experiments.events import load_events
from topologies import InputError


def test_events_are_read_in_order_of_time_and_unknown_ones_kept(tmp_path: Path) -> None:
    log = tmp_path / "sender.jsonl"
    log.write_text(
        '{"t_ns": 20, "event": "EvRetired", "ev": 5}\n\n{"t_ns": 10, "event": "Novel", "x": [1]}\n'
    )
    events = load_events(log)
    assert [(e.t_ns, e.name) for e in events.events] == [(10, "Novel"), (20, "EvRetired")]
    assert events.of("EvRetired")[0].int_field("ev") == 5
    assert events.of("EvRetired")[0].int_field("plane") is None
    assert events.between("EvRetired", 20, 21)
    assert not events.between("EvRetired", 0, 20)
    assert events.of("Nothing") == ()


def test_the_broken_last_line_of_a_killed_agent_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "sender.jsonl"
    log.write_text('{"t_ns": 1, "event": "A"}\n{"t_ns": 2, "ev')
    assert len(load_events(log).events) == 1


@pytest.mark.parametrize(
    "line", ["nonsense", "[1]", '{"event": "A"}', '{"t_ns": 1.5, "event": "A"}', "3", "null"]
)
def test_anything_else_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    log = tmp_path / "sender.jsonl"
    log.write_text('{"t_ns": 1, "event": "A"}\n' + line + "\n")
    with pytest.raises(InputError) as caught:
        load_events(log)
    assert str(caught.value).startswith(f"{log}:2: ")
    with pytest.raises(InputError, match="cannot read the event log"):
        load_events(tmp_path / "none")
