"""The live lab: a viewer's action reaches the fabric, and the page shows its effect."""

import json
import os
import re
from collections.abc import Iterator

import pytest

from mrclab.live.recording import KEPT_PACKETS_BYTES
from mrclab.live.recording import KEPT_PACKETS_BYTES as RECORDED_BYTES
from mrclab.live.session import CAPTURED_BYTES
from mrclab.testbed.names import Names
from mrclab.topologies import load_fabric
from tests.support.command import Mrclab
from tests.support.live import LivePage, live_page, rates

pytestmark = pytest.mark.root
TINY = load_fabric("tiny")


@pytest.fixture(scope="module")
def runner() -> Mrclab:
    return Mrclab(Names.of_prefix(f"t{os.urandom(3).hex()}"))


@pytest.fixture(scope="module")
def page(runner: Mrclab) -> Iterator[LivePage]:
    with live_page(runner, "--topology", "tiny") as found:
        yield found


@pytest.mark.slow
def test_both_transports_deliver_from_the_start(page: LivePage) -> None:
    frame = page.frame_with(lambda f: all(rate > 0 for rate in rates(f).values()) and f["links"])
    assert set(rates(frame)) == {"mrc", "rocev2"}
    assert len(frame["links"]) == len(TINY.links)
    assert len(frame["paths"]["mrc"]) == len(TINY.paths("h0", "h2"))


def test_a_cut_stops_one_path_not_mrc_and_a_card_tells_the_times(page: LivePage) -> None:
    page.frame_with(lambda f: all(rate > 0 for rate in rates(f).values()))
    link = page.ask("used/rocev2")["link"]
    assert TINY.link(*link.split(":")).kind == "fabric"
    number = page.ask("fault", {"kind": "blackhole", "where": link})["card"]

    def told(frame: dict[str, object]) -> bool:
        cards = frame["cards"]
        assert isinstance(cards, list)
        mine = [card["results"] for card in cards if card["number"] == number]
        return bool(mine and mine[0] and mine[0]["mrc"]["recovered_us"] and mine[0]["rocev2"]["felt"])

    frame = page.frame_with(lambda f: told(f) and rates(f)["rocev2"] == 0 and rates(f)["mrc"] > 0)
    results = next(card["results"] for card in frame["cards"] if card["number"] == number)
    mrc = results["mrc"]
    assert mrc["felt"]
    assert 0 <= mrc["first_loss_us"] <= mrc["detected_us"] <= mrc["recovered_us"]
    assert results["rocev2"]["felt"]
    assert results["rocev2"]["recovered_us"] is None
    assert link in frame["faults"]
    packets = page.ask(f"packets/{number}/mrc")
    assert any(row[3] == 1 for row in packets["rows"])
    assert packets["broken"]
    assert page.ask("restore", {"where": link})["restored"] == [link]
    page.frame_with(lambda f: not f["faults"] and rates(f)["rocev2"] > 0)


def test_the_page_follows_what_another_terminal_breaks_and_restores(page: LivePage, runner: Mrclab) -> None:
    link = next(link.name for link in TINY.links if link.kind == "fabric")
    runner.ok("fault", "blackhole", link)
    assert page.frame_with(lambda f: f["faults"])["faults"][link]["text"] == "silent cut"
    assert page.ask("restore", {"where": None})["restored"] == [link]
    number = page.ask("fault", {"kind": "blackhole", "where": link})["card"]
    runner.ok("restore", link)
    frame = page.frame_with(lambda f: not f["faults"])
    assert next(card["undone"] for card in frame["cards"] if card["number"] == number)


def test_what_makes_no_sense_is_refused_by_name(page: LivePage) -> None:
    code, said = page.refusal("fault", {"kind": "blackhole", "where": "p9-t0-0:p9-t1-0"})
    assert (code, "p9-t0-0:p9-t1-0" in said) == (400, True)
    assert page.refusal("restore", {"where": "p0-t0-0:p0-t1-0"})[0] == 400
    assert page.refusal("fault", {"kind": "blackhole", "where": TINY.links[0].name}, owner=False)[0] == 403
    assert page.refusal("counters/p9-t0-0")[0] == 400


def test_clustermapper_finds_a_cut_link_and_says_so_on_the_page(page: LivePage) -> None:
    link = next(link.name for link in TINY.links if link.kind == "fabric")
    page.ask("mapper", {"on": True})
    page.frame_with(lambda f: f["mapper"] and not f["mapper"]["starting"])
    page.ask("fault", {"kind": "blackhole", "where": link})
    frame = page.frame_with(lambda f: f["mapper"]["verdicts"])
    [verdict] = frame["mapper"]["verdicts"]
    assert (verdict["place"], verdict["cause"], verdict["right"]) == (link, "dead", True)
    assert verdict["after_ms"] > 0
    page.ask("restore", {"where": link})
    page.frame_with(lambda f: not f["mapper"]["verdicts"])
    page.ask("mapper", {"on": False})
    page.frame_with(lambda f: f["mapper"] is None)


def test_watchers_see_and_a_replay_is_one_file(page: LivePage) -> None:
    page.frame_with(rates)
    assert page.ask("about", owner=False)["owner"] is False
    assert "window.RECORDING" in page.ask("replay.html?seconds=5", owner=False)
    assert 'transport="mrc"' in page.ask("metrics", owner=False)


@pytest.mark.slow
def test_any_number_of_faults_keeps_the_same_memory(page: LivePage) -> None:
    page.frame_with(lambda f: all(rate > 0 for rate in rates(f).values()))
    links = [link.name for link in TINY.links if link.kind == "fabric"]
    for number in range(12):
        where = links[number % len(links)]
        page.ask("fault", {"kind": "loss", "where": where, "ratio": 0.05})
        page.ask("restore", {"where": where})
        if number % 6 == 5:
            page.frame_with(lambda f: f["cards"][-1]["results"])
    said = page.ask("metrics")
    kept = {
        what: float(re.search(rf'live_kept_bytes{{what="{what}"}} (\S+)', said)[1])  # type: ignore[index]
        for what in ("captures", "packets", "recording")
    }
    assert 0 < kept["captures"] <= CAPTURED_BYTES
    assert 0 < kept["packets"] <= KEPT_PACKETS_BYTES
    assert 0 < kept["recording"] <= RECORDED_BYTES


def test_an_all_reduce_over_two_transports_takes_the_place_of_what_ran(page: LivePage) -> None:
    page.ask("traffic", {"transports": ["mrc", "tcp"], "pattern": "all-reduce", "message_bytes": 65536})
    assert page.refusal("show", {"flow": len(TINY.hosts)})[0] == 400
    page.ask("show", {"flow": 1})
    seen: set[str] = set()

    def both_stepped(frame: dict[str, object]) -> bool:
        transports = frame["transports"]
        assert isinstance(transports, dict)
        seen.update(name for name, one in transports.items() if one["steps"])
        return seen == {"mrc", "tcp"} and frame["shown"] == 1

    flows = page.frame_with(both_stepped)["transports"]["mrc"]["flows"]
    assert len(flows) == len(TINY.hosts)
    racks = [tuple(TINY.host(name).rack for name in flow[:2]) for flow in flows]
    assert all(a != b for a, b in racks), "no neighbours of the ring are in one rack"
    page.ask("traffic", {"transports": ["mrc", "rocev2"]})


def test_traffic_that_is_refused_leaves_the_traffic_that_runs(page: LivePage) -> None:
    before = {"mrc", "rocev2"}
    page.ask("traffic", {"transports": ["mrc", "rocev2"]})
    page.frame_with(lambda f: set(rates(f)) == before)
    page.ask("fault", {"kind": "switch-death", "where": "p0-t1-0"})
    try:
        code, said = page.refusal("traffic", {"transports": ["mrc", "tcp"]})
        assert (code, "does not answer" in said) == (400, True)
        assert set(page.ask("state")["frame"]["transports"]) == before
        assert page.ask("about")["plan"]["transports"] == sorted(before)
    finally:
        page.ask("restore", {"where": None})
    frame = page.ask("state")["frame"]
    assert set(page.frame_with(lambda f: f["t_ms"] > frame["t_ms"] + 1000)["transports"]) == before


def test_the_terminal_shows_what_the_page_shows(page: LivePage, runner: Mrclab) -> None:
    page.frame_with(rates)
    frame = json.loads(runner.ok("watch", "--json"))
    assert frame["topology"] == "tiny"
    assert set(rates(frame)) == set(rates(page.ask("state")["frame"]))
    said = runner.ok("watch", "--once")
    assert "delivered" in said
    assert "no faults" in said or "fault:" in said


def test_a_second_page_of_the_same_testbed_is_refused(page: LivePage, runner: Mrclab) -> None:
    done = runner("live", "--port", "0")
    assert done.returncode == 2
    assert "has a live page already" in done.stderr
    assert set(rates(json.loads(runner.ok("watch", "--json")))) == set(rates(page.ask("state")["frame"]))
