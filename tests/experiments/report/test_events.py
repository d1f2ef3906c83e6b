"""The EV map and the event browser of a report."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mrclab.experiments.report.events import MOST_ROWS, draw_ev_map, ev_words, event_rows, share_retired
from mrclab.experiments.report.write import write_all
from mrclab.experiments.result.file import save_result
from mrclab.topologies.model import ev_of

A, B = ev_of(0, 1), ev_of(2, 3)
EVENTS: dict[str, Any] = {
    "repetition": 0,
    "lost": [[100.0, 0, 7, A], [180.0, 0, 7, A], [5000.0, 0, 7, A], [120.0, 1, 9, B]],
    "retired": [[200.0, 0, 7, A], [300.0, 1, 9, B]],
    "replaced": [],
    "restored": [[600.0, 0, 7, A]],
    "skipped": {},
    "left_out": 0,
}


@pytest.fixture
def result(spray: dict[str, Any]) -> dict[str, Any]:
    made = deepcopy(spray)
    made["transports"]["mrc"]["path_events"] = [deepcopy(EVENTS)]
    made["transports"]["mrc"]["routing"] = "srv6"
    return made


def test_an_ev_is_out_of_use_from_its_retirement_until_it_is_back() -> None:
    found = share_retired(EVENTS, np.array([0.0, 200.0, 400.0, 800.0]), "srv6")
    assert list(found) == ["plane 0, T1 1", "plane 2, T1 3"]
    assert found["plane 0, T1 1"].tolist() == [0.0, 0.5, 0.25]  # retired by one of two QPs until 600
    assert found["plane 2, T1 3"].tolist() == [0.0, 0.25, 0.5]  # this path never comes back


def test_an_ev_that_replaces_another_is_in_use_again() -> None:
    events = {**EVENTS, "replaced": [[400.0, 1, 9, A, B]]}
    found = share_retired(events, np.array([0.0, 300.0, 400.0, 800.0]), "srv6")
    assert found["plane 2, T1 3"].tolist() == [0.0, 0.5, 0.0]


def test_only_segment_lists_name_a_plane_and_a_t1() -> None:
    assert ev_words(A, "srv6") == "plane 0, T1 1"
    assert ev_words(0xBEEF, "ecmp") == "EV 0xbeef"


def test_events_are_in_order_and_losses_at_one_time_share_a_row(result: dict[str, Any]) -> None:
    rows, more = event_rows(result)
    assert more == 0
    assert [row.at_us for row in rows] == sorted(row.at_us for row in rows)
    lost = [row.text for row in rows if row.kind == "lost"]
    assert lost == [
        "2 packets in 80 us, plane 0, T1 1",
        "1 packet, plane 2, T1 3",
        "1 packet, plane 0, T1 1",
    ]
    faults = result["transports"]["mrc"]["faults"]
    kinds = [row.kind for row in rows]
    assert kinds.count("fault") == len(faults)
    assert kinds.count("repair") == sum(f.get("restore_before_ns") is not None for f in faults)
    assert (kinds.count("retired"), kinds.count("restored")) == (2, 1)


def test_rows_are_limited_and_the_others_counted(result: dict[str, Any]) -> None:
    events = result["transports"]["mrc"]["path_events"][0]
    events["lost"] = [[2000.0 * number, 0, 7, A] for number in range(MOST_ROWS + 30)]
    rows, more = event_rows(result)
    assert len(rows) == MOST_ROWS
    assert more >= 30


@pytest.mark.slow
def test_the_page_has_a_filter_and_links_to_its_pictures(result: dict[str, Any], tmp_path: Path) -> None:
    save_result(tmp_path, result)
    page, _ = write_all(tmp_path)
    html = page.read_text(encoding="utf-8")
    for kind in ("fault", "lost", "retired", "restored"):
        assert f'id="show-{kind}"' in html
        assert f"#show-{kind}:not(:checked)" in html
    assert '<a href="#picture-ev-map">' in html
    assert '<figure id="picture-ev-map">' in html
    assert (tmp_path / "ev-map.png").stat().st_size > 0


def test_without_retired_evs_there_is_no_map(result: dict[str, Any]) -> None:
    result["transports"]["mrc"]["path_events"][0]["retired"] = []
    assert draw_ev_map(result) == {}
