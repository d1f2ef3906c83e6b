"""The status of a fabric in the terminal fits on one screen. Problems come first. Times are clock times."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Any

import pytest
from rich.console import Console, RenderableType

from mrclab.clustermapper import Page
from mrclab.hosts.path_probe import Echo, Hop, ProbedPath, probed_paths
from mrclab.probe import MOST_PATHS, all_paths
from mrclab.status import page, screen
from mrclab.terminal import moment, offset_ns, time_of_day
from mrclab.topologies import load_fabric

S = 10**9


def said(what: RenderableType, width: int = 80) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(what)
    return console.export_text()


def counts(packets: int) -> dict[str, int]:
    return {"packets": packets, "bytes": packets * 1000}


def answer(t_ns: int, packets: int, trimmed: int = 0, topology: str = "lab") -> dict[str, Any]:
    """Return a status: every port has carried ``packets``, and a port of `lab` has trimmed ``trimmed``."""
    fabric = load_fabric(topology)
    switches: dict[str, Any] = {}
    for switch in fabric.switches:
        ports = [str(port.ref.port) for port in switch.ports]
        queue = {what: counts(0) for what in ("high", "marked", "trimmed", "refused")}
        switches[switch.name] = {
            "counters": {
                "rx": {port: counts(packets) for port in ports},
                "rx_high": {port: counts(0) for port in ports},
                "tx": {port: counts(packets) for port in ports},
                "queues": {port: {**queue, "longest_wait_us": 12.0} for port in ports},
                "port_drops": {port: {} for port in ports},
            }
        }
    if topology == "lab":
        switches["p3-t1-3"]["counters"]["queues"]["4"]["trimmed"] = counts(trimmed)
    states = {f"{name}-eth{port}": "up" for name, s in switches.items() for port in s["counters"]["rx"]}
    states["p0-t0-0-eth1"] = "down"
    return {
        "t_ns": t_ns,
        "topology": topology,
        "target": "ebpf",
        "since": "19:00",
        "faults": {},
        "ports": states,
        "switches": switches,
    }


def test_a_watched_fabric_fits_one_screen_with_what_is_wrong_first() -> None:
    text = said(screen(answer(2 * S, 5000, trimmed=3), answer(S, 1000), rows=24))
    lines = text.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert "port p0-t0-0-eth1: down" in text
    rows = [line for line in lines if re.match(r"p\d-t\d-\d-eth\d", line)]
    assert rows[0].startswith("p3-t1-3-eth4 "), "the port that trimmed comes before those that are busy"
    assert rows[0].split()[1:6] == ["4,000", "32", "4,000", "32", "3"]
    assert "busy ports more" in lines[-1]


def status_of(topology: str) -> dict[str, Any]:
    """Return a status of a topology without any fault."""
    found = answer(S, 1000, topology=topology)
    for number, switch in enumerate(found["switches"].values()):
        switch |= {"device_id": number, "p4runtime": "127.0.0.1:40000", "drift": "", "programmed": 1}
        switch["counters"]["drops"] = {}
    found["ports"] = dict.fromkeys(found["ports"], "up")
    return found


@pytest.mark.parametrize("topology", ["tiny", "lab", "wide"])
def test_the_status_fits_one_screen(topology: str) -> None:
    found = status_of(topology)
    lines = said(page(found, rows=24)).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_a_switch_that_is_not_well_has_a_row_of_its_own_on_any_screen() -> None:
    found = status_of("wide")
    found["switches"]["p3-t1-7"]["counters"]["drops"] = {"no_route": counts(5)}
    found["switches"]["p4-t1-8"]["counters"] = None
    found["ports"]["p0-t0-1-eth2"] = "down"
    text = said(page(found, rows=24))
    assert len(text.splitlines()) <= 24
    assert re.search(r"^ p3-t1-7 .* no_route 5", text, re.M)
    assert re.search(r"^ p4-t1-8 .* not answering", text, re.M)
    assert re.search(r"^ p0-t0-1 .* 1 port not up", text, re.M)
    assert re.search(r"^ p3-t1-\*: 31 .* as programmed", text, re.M)


def test_before_the_first_interval_there_are_no_rates() -> None:
    text = said(screen(answer(S, 1000), None, rows=24))
    assert "32 of 32 switches answer" in " ".join(text.split())
    assert "Mbit/s" not in text


def echo(path: ProbedPath, rtt_us: int) -> Echo:
    steps = len(path.switches) + 1
    hops = [Hop(s, 1, 2, 0.0, (n + 1) * rtt_us // steps) for n, s in enumerate(path.switches)]
    return Echo(0, rtt_us * 1000, tuple(hops))


@pytest.mark.parametrize(("topology", "hosts"), [("lab", ("h0", "h6")), ("wide", ("h0", "h3"))])
def test_all_paths_are_a_row_each_and_few_enough(topology: str, hosts: tuple[str, str]) -> None:
    paths = probed_paths(load_fabric(topology), *hosts)
    found = [
        (path, [echo(path, 100 + number), None][: 1 + (number == 7)]) for number, path in enumerate(paths)
    ]
    text = said(all_paths(found, one_clock=True))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= min(len(paths), MOST_PATHS) + 6
    assert "1 of 2" in text, "a path that loses is always shown"
    slowest = " ".join(paths[-1].switches[:3])
    assert slowest in text
    if len(paths) > MOST_PATHS:
        assert f"{MOST_PATHS} of {len(paths)} paths" in text


def test_a_moment_is_told_as_time_of_day_with_its_error() -> None:
    ahead = offset_ns()
    now = time.monotonic_ns()
    shown = datetime.strptime(time_of_day(now, ahead), "%H:%M:%S.%f")
    wall = datetime.fromtimestamp((now + ahead) // 10**9)
    assert (shown.hour, shown.minute, shown.second) == (wall.hour, wall.minute, wall.second)
    assert moment(1_000_000, 1_004_000, ahead).endswith(" +- 2.0 us")
    assert abs(ahead - (time.time_ns() - time.monotonic_ns())) < 10**9


def test_clustermapper_fits_one_screen() -> None:
    page = Page("/run/mrclab/denylist.json")
    page.add({"event": "probing", "t_ns": S, "links": 96, "probes_per_round": 200, "interval_us": 1000})
    for number in range(60):
        place = f"p0-t0-{number}:p0-t1-0"
        verdict = {"event": "verdict", "cause": "dead", "place": place, "losses": 3, "first_loss_ns": S}
        page.add({**verdict, "t_ns": 2 * S})
    page.add({"event": "cleared", "t_ns": 3 * S, "place": "p0-t0-59:p0-t1-0"})
    text = page.shown(24)
    assert len(text.splitlines()) <= 24
    assert "bad now: 59" in text
    assert "p0-t0-0:p0-t1-0 is dead" in text
    assert text.splitlines()[-1].endswith("p0-t0-59:p0-t1-0 works again")
    assert "CLOCK" not in text
