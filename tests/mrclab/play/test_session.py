"""The simulated page: a cut always has the same effects, and invalid requests fail."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest

from mrclab.linux.errors import InputError
from mrclab.play.scene import OFFERED, Scene, scene_of
from mrclab.play.session import Play
from mrclab.play.tracks import AGAIN, LOST
from mrclab.topologies import load_fabric

TINY = load_fabric("tiny")
CUT_NS = 40_000


def frames(play: Play, until_ns: int, step_ns: int = 2_000) -> list[dict[str, Any]]:
    found = []
    while play.now_ns < until_ns:
        play.advance(min(until_ns, play.now_ns + step_ns))
        found.append(play.frame())
    return found


def cut(play: Play, transport: str) -> str:
    play.advance(CUT_NS)
    link = play.busiest(transport)
    assert link is not None
    play.make_fault({"kind": "blackhole", "where": link})
    return link


def rate(frame: dict[str, Any], name: str) -> float:
    return sum(flow[2] for flow in frame["transports"][name]["flows"])


def test_a_cut_of_both_paths_stops_rocev2_and_mrc_recovers_within_some_round_trips() -> None:
    play = Play(Scene(fabric="tiny"), TINY)
    cut(play, "rocev2")
    seen = frames(play, CUT_NS + 200_000)
    results = seen[-1]["cards"][0]["results"]
    mrc, rocev2 = results["mrc"], results["rocev2"]
    assert mrc["felt"]
    assert mrc["first_loss_us"] <= mrc["rerouted_us"] <= mrc["recovered_us"]
    assert mrc["first_loss_us"] < mrc["detected_us"] <= mrc["recovered_us"] < 15 * mrc["rtt_us"]
    assert rocev2["felt"]
    assert rocev2["recovered_us"] is None
    assert rocev2["rerouted_us"] is None  # RoCEv2 never reroutes
    assert rate(seen[-1], "rocev2") == 0
    assert rate(seen[-1], "mrc") > 0.9 * play.scene.rate_bps
    again = [m for f in seen for m in f["sim"]["moves"]["mrc"] if m[4] == AGAIN]
    lost = [e for f in seen for e in f["sim"]["ends"]["mrc"] if e[2] == LOST]
    assert again
    assert lost


def test_rocev2_stays_broken_until_the_link_is_restored_and_says_when_it_gave_up() -> None:
    play = Play(Scene(fabric="tiny", transports=("rocev2",)), TINY)
    cut(play, "rocev2")
    seen = frames(play, 4_000_000, 100_000)
    assert seen[-1]["transports"]["rocev2"]["gave_up"] == 1
    result = seen[-1]["cards"][0]["results"]["rocev2"]
    assert result["gave_up"]
    assert 262 < result["gave_up_us"] < 4_000
    play.undo(None)
    after = frames(play, 4_200_000, 10_000)
    assert rate(after[-1], "rocev2") > 0.9 * play.scene.rate_bps
    assert after[-1]["transports"]["rocev2"]["restarts"] == 1


def test_the_same_events_give_the_same_frames_whatever_the_steps() -> None:
    played = Play(Scene(fabric="tiny"), TINY)
    cut(played, "rocev2")
    frames(played, 100_000)
    played.undo(None)
    frames(played, 120_000)
    again = Play(Scene(fabric="tiny"), TINY)
    again.plan_events(json.loads(json.dumps(played.events)))
    again.advance(120_000)
    first, second = played.frame(), again.frame()
    assert first["paths"] == second["paths"]
    assert first["cards"] == second["cards"]
    assert again.events == played.events


def test_no_frame_is_on_two_links_at_once_and_each_goes_on_where_it_came() -> None:
    play = Play(Scene(fabric="tiny", transports=("mrc",)), TINY)
    moves: dict[int, list[list[int]]] = {}
    for frame in frames(play, 60_000):
        for move in frame["sim"]["moves"]["mrc"]:
            moves.setdefault(move[0], []).append(move)
    ends = [(link.a.node, link.b.node) for link in play.fabric.links]
    assert any(len(way) == 4 for way in moves.values())
    for way in moves.values():
        for (_, place, _, end, kind), (_, after, begin, _, kind_after) in pairwise(way):
            assert ends[place >> 1][place & 1] == ends[after >> 1][1 - (after & 1)]
            assert end <= begin + 1
            assert kind == kind_after


@pytest.mark.parametrize("name", OFFERED)
def test_each_transport_delivers(name: str) -> None:
    play = Play(Scene(fabric="tiny", transports=(name,)), TINY)
    assert rate(frames(play, 60_000, 4_000)[-1], name) > 0.8 * play.scene.rate_bps


def test_rocev2_with_failover_moves_to_another_port_and_is_whole_again() -> None:
    play = Play(Scene(fabric="tiny", transports=("rocev2-failover",)), TINY)
    cut(play, "rocev2-failover")
    seen = frames(play, 3_500_000, 100_000)
    result = seen[-1]["cards"][0]["results"]["rocev2-failover"]
    assert (
        8 * 262 < result["recovered_us"] < 3_000
    )  # eight timeouts until the queue pair fails, and the probe
    assert "another port" in result["detected_why"]
    assert rate(seen[-1], "rocev2-failover") > 0.8 * play.scene.rate_bps


def test_a_window_over_one_ecmp_path_stands_until_the_repair() -> None:
    play = Play(Scene(fabric="tiny", transports=("ecmp-window",)), TINY)
    link = play.busiest("ecmp-window")
    assert len(play.frame()["paths"]["ecmp-window"]) == 1
    cut(play, "ecmp-window")
    seen = frames(play, 300_000)
    assert seen[-1]["cards"][0]["where"] == link
    assert rate(seen[-1], "ecmp-window") == 0
    assert seen[-1]["cards"][0]["results"]["ecmp-window"]["recovered_us"] is None
    play.undo(None)
    seen = frames(play, 3_000_000, 50_000)
    assert seen[-1]["cards"][0]["results"]["ecmp-window"]["recovered_us"] > 200
    assert rate(seen[-1], "ecmp-window") > 0.9 * play.scene.rate_bps


def test_a_window_over_one_ecmp_path_repairs_single_losses_within_some_round_trips() -> None:
    play = Play(Scene(fabric="tiny", transports=("ecmp-window",)), TINY)
    link = play.busiest("ecmp-window")
    frames(play, 40_000)
    play.make_fault({"kind": "loss", "where": link, "ratio": 0.01})
    frames(play, 300_000)
    play.undo(None)
    result = frames(play, 400_000)[-1]["cards"][0]["results"]["ecmp-window"]
    assert result["lost"] >= 3
    assert result["recovered_us"] < 300 + 15 * result["rtt_us"]


def test_a_spray_without_health_says_that_it_keeps_its_paths() -> None:
    play = Play(Scene(fabric="tiny", transports=("oblivious",)), TINY)
    cut(play, "oblivious")
    result = frames(play, 100_000)[-1]["cards"][0]["results"]["oblivious"]
    assert "goes on using" in result["rerouted_why"]


def test_an_incast_fills_the_queues_before_the_last_host() -> None:
    play = Play(Scene(fabric="tiny", transports=("mrc",), pattern="incast", rate_bps=100 * 10**9), TINY)
    queues = [row for frame in frames(play, 60_000) for row in frame["sim"]["queues"]["mrc"]]
    assert max(wait for _, wait in queues) > 1_000


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "JSON object"),
        ({"speed": 1}, "no 'speed'"),
        ({"transports": []}, "one to four"),
        ({"transports": ["mrc", "mrc"]}, "one to four"),
        ({"transports": ["tcp"]}, "no transport 'tcp'"),
        ({"pattern": "all-reduce"}, "no pattern"),
        ({"rate_bps": 10**13}, "rate_bps is a whole number"),
        ({"rate_bps": "fast"}, "rate_bps is a whole number"),
        ({"seed": True}, "seed is a whole number"),
        ({"fabric": 1}, "fabric is the name"),
    ],
)
def test_a_scene_that_makes_no_sense_is_refused_in_one_line(data: object, words: str) -> None:
    with pytest.raises(InputError, match=words) as found:
        scene_of(data)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("fault", {"kind": "blackhole", "where": "nowhere"}, "nowhere"),
        ("fault", {"kind": "flap", "where": "p0-t0-0:p0-t1-0"}, "no fault kind 'flap'"),
        ("fault", {"kind": "loss", "where": "p0-t0-0:p0-t1-0", "ratio": "all"}, "ratio is a number"),
        ("fault", {"kind": "loss", "where": "p0-t0-0:p0-t1-0", "ratio": 2}, "ratio"),
        ("fault", {"kind": "loss", "where": "p0-t0-0:p0-t1-0", "color": 2}, "not color"),
        ("restore", {"where": "p0"}, "no fault at p0"),
        ("show", {"flow": 9}, "flows are 0 to 0"),
        ("pace", {"pace": 1}, "a pace is"),
        ("traffic", {"fabric": "wide"}, "another page"),
        ("packets/7/mrc", None, "no packets"),
        ("counters/h0", None, "no switch"),
        ("evs/h0/h0", None, "no paths"),
        ("mapper", {"on": True}, "cannot answer"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused_and_changes_nothing(path: str, body: Any, words: str) -> None:
    play = Play(Scene(fabric="tiny"), TINY)
    with pytest.raises(InputError, match=words):
        play.ask(path, body)
    assert play.events == []
    assert play.frame()["faults"] == {}


@pytest.mark.parametrize(
    "events",
    [
        {},
        [[1, "fault"]],
        [["soon", "restore", None]],
        [[5, "restore", None], [1, "restore", None]],
        [[1, "x", 1]],
    ],
)
def test_events_of_an_address_that_make_no_sense_are_refused(events: object) -> None:
    with pytest.raises(InputError):
        Play(Scene(fabric="tiny"), TINY).plan_events(events)


def test_the_core_needs_neither_numpy_nor_pydantic() -> None:
    """Python in a browser has neither numpy nor pydantic."""
    code = (
        "import sys\n"
        "for name in ('numpy', 'pydantic', 'grpc', 'pyroute2', 'starlette'): sys.modules[name] = None\n"
        "import mrclab.play.session"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_server_needs_nothing_of_the_testbed() -> None:
    code = "import mrclab.play.command, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert "starlette" in loaded
    assert not {name.partition(".")[0] for name in loaded} & {
        "grpc",
        "finsy",
        "google",
        "llvmlite",
        "pyroute2",
    }
    assert not [name for name in loaded if name.startswith(("mrclab.testbed", "mrclab.switches"))]
