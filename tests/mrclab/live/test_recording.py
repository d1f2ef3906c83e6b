"""A replay is a single file that needs no other file. It shows the same as the live page did."""

import base64
import gzip
import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mrclab.live.describe import about
from mrclab.live.recording import KEPT_FRAMES, SCRIPTS, Recording, live_page, replay_page, static, thinned
from mrclab.live.server import exposition
from mrclab.topologies import load_fabric

TINY = load_fabric("tiny")
RESULT = {
    "felt": True,
    "first_loss_us": 3.0,
    "detected_us": 50.0,
    "rerouted_us": None,
    "recovered_us": 80.0,
}
FRAME: dict[str, Any] = {
    "t_ms": 100,
    "transports": {
        "mrc": {"label": "MRC", "flows": [["h0", "h2", 5e7]], "sent": 9, "resent": 1, "restarts": 0}
    },
    "paths": {"mrc": [[49152, 0, 1, 1, 9, 8, 1, 0, 0, 0], [49153, 0, 3, 0, 1, 0, 1, 0, 0, 1]]},
    "links": [[0, 0]],
    "faults": {},
    "cards": [{"results": {"mrc": RESULT}}],
    "events": [],
}


def whole(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return complete updates, as the page does: take a missing value from the previous update."""
    found, state = [], {}
    for frame in frames:
        state = {**state, **frame}
        found.append(state)
    return found


@given(
    st.lists(
        st.fixed_dictionaries(
            {"t_ms": st.integers(0, 9), "a": st.integers(0, 2), "b": st.lists(st.integers(0, 1))}
        )
    )
)
def test_thinning_loses_nothing(frames: list[dict[str, Any]]) -> None:
    assert whole(thinned(frames)) == frames


def test_a_replay_page_holds_its_data_and_loads_nothing() -> None:
    page = replay_page(about(TINY, "ebpf", "1", {}), [FRAME, {**FRAME, "t_ms": 200}], {"1/mrc": {"rows": []}})
    found = re.search(r'window\.RECORDING = "([^"]+)"', page)
    assert found is not None
    data = json.loads(gzip.decompress(base64.b64decode(found.group(1))))
    assert whole(data["frames"])[1] == {**FRAME, "t_ms": 200}
    assert data["about"]["fabric"]["name"] == "tiny"
    assert data["packets"] == {"1/mrc": {"rows": []}}
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "<!--" not in page.replace("<!doctype", "")


def test_the_live_page_asks_only_its_own_server() -> None:
    page = live_page()
    for source in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert source in ("data:,", "#race") or source.startswith("static/")
    for name in SCRIPTS:
        assert f"static/{name}" in page
        assert "http" not in static(name).replace("http://www.w3.org/2000/svg", "").replace("http://", "")


def test_a_recording_keeps_the_newest_frames() -> None:
    recording = Recording({})
    for n in range(KEPT_FRAMES + 10):
        recording.add({"t_ms": 100 * n})
    assert len(recording.frames()) == KEPT_FRAMES
    assert [frame["t_ms"] for frame in recording.frames(0.1)] == [
        100 * (KEPT_FRAMES + 8),
        100 * (KEPT_FRAMES + 9),
    ]


def test_every_link_of_the_fabric_is_drawn_in_the_order_of_its_loads() -> None:
    drawn = about(TINY, "ebpf", "1", {})["fabric"]
    assert [link[0] for link in drawn["links"]] == [link.name for link in TINY.links]
    assert {switch["name"] for switch in drawn["switches"]} == {s.name for s in TINY.switches}


def test_metrics_are_those_of_the_newest_frame() -> None:
    text = exposition(lambda: FRAME, {"captures": 7}).decode()
    assert 'mrclab_delivered_bits_per_second{source="h0",target="h2",transport="mrc"} 5e+07' in text
    assert 'mrclab_packets_retransmitted_total{transport="mrc"} 1.0' in text
    assert 'mrclab_active_paths{transport="mrc"} 1.0' in text
    assert 'mrclab_last_fault_seconds{time="recovered",transport="mrc"} 8e-05' in text
    assert "rerouted" not in text
    assert 'mrclab_live_kept_bytes{what="captures"} 7.0' in text
    assert exposition(lambda: None, {}) == b""
