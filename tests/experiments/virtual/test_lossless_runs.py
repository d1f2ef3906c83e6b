"""Scenarios over lossless links: which transports may use them, and the values in a result."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console

from mrclab.experiments.measure.repetition import Repetition
from mrclab.experiments.report.build import Run, build
from mrclab.experiments.report.flow_control import rows_of, sentences
from mrclab.experiments.report.page.content import result_page
from mrclab.experiments.report.table import render_result
from mrclab.experiments.result.model import result_schema
from mrclab.experiments.run.outcome import Outcome
from mrclab.experiments.spec.model import Scenario
from mrclab.experiments.spec.scenario import parse_scenario
from mrclab.experiments.virtual.engine import run_scenario
from mrclab.linux.errors import InputError

FLAT: dict[str, Any] = {
    "name": "flat",
    "planes": 1,
    "t0": 2,
    "t1": 1,
    "hosts": 8,
    "links": {
        "host": {"rate": "100 Gbit/s", "delay": "500 ns"},
        "fabric": {"rate": "400 Gbit/s", "delay": "500 ns"},  # so that only the receiver's link is full
    },
}
INCAST = {
    "kind": "incast",
    "senders": 3,
    "victim": True,
    "message_bytes": 65536,
    "depth": 16,
    "duration": "100 us",
}
NO_DCQCN = {"options": {"dcqcn": None}}
SMALL = {**NO_DCQCN, "buffer": "48 KiB"}
"""The buffers are so small that they fill in a short run."""


def scenario(**keys: Any) -> Scenario:
    given = {
        "name": "test",
        "topology": FLAT,
        "target": "sim",
        "repetitions": 1,
        "workload": INCAST,
        "warmup": "30 us",
        "measure": {"series": "10 us"},
        "limit": "1 s",
        **keys,
    }
    return parse_scenario(json.dumps(given), "test.yaml")


def carried_out(out: Path, asked: Scenario) -> dict[str, list[Repetition]]:
    outcome = Outcome()
    run_scenario(asked, out, outcome, say=lambda text: None, step=lambda done: None)
    return outcome.repetitions


def result_of(asked: Scenario, found: dict[str, list[Repetition]]) -> dict[str, Any]:
    run = Run(
        scenario=asked.name,
        parameters=asked.to_dict(),
        target="sim",
        topology="flat",
        seed=asked.seed,
        transports=asked.transports,
        system={},
    )
    return json.loads(json.dumps(build(run, found), default=float))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    asked = scenario(
        transports={
            "rocev2": NO_DCQCN,
            "rocev2-pfc": SMALL,
            "rocev2-credits": SMALL,
            "mrc-pfc": {"use": "mrc", "lossless": "pfc"},
        }
    )
    return result_of(asked, carried_out(tmp_path_factory.mktemp("runs"), asked))


def test_nothing_is_dropped_where_links_stop_instead(result: dict[str, Any]) -> None:
    jsonschema.validate(result, result_schema())
    assert result["integrity"] == "ok"
    counters = {name: found["counters"] for name, found in result["transports"].items()}
    assert counters["rocev2"]["frames_dropped"] > 0
    assert "pause_frames" not in counters["rocev2"]
    for name in ("rocev2-pfc", "rocev2-credits", "mrc-pfc"):
        assert counters[name]["frames_dropped"] == counters[name]["frames_trimmed"] == 0
    # Each pause has a resume, except at the beginning and the end of the measurement.
    pauses, resumes = (counters["rocev2-pfc"][f"{kind}_frames"] for kind in ("pause", "resume"))
    assert pauses > 10
    assert abs(pauses - resumes) <= 20
    assert counters["rocev2-credits"]["credit_updates"] > 0


def test_flow_control_is_told_port_by_port_and_over_time(result: dict[str, Any]) -> None:
    assert result["transports"]["rocev2"]["flow_control"] == []
    for name, mode in (("rocev2-pfc", "pfc"), ("rocev2-credits", "credit")):
        found = result["transports"][name]
        (flow,) = found["flow_control"]
        assert (flow["mode"], flow["links"]) == (mode, 2 * (8 + 2))
        stopped = [port for port in flow["ports"] if port["stopped_us"]]
        assert sum(port["stopped_us"] for port in stopped) == pytest.approx(sum(flow["stopped_us"]))
        assert max(port["stopped_us"] for port in stopped) <= flow["length_us"]
        assert max(port["depth"] for port in stopped) == found["summary"]["stop_depth"]["max"] == 3
        assert found["summary"]["blocked_packets"]["max"] > 0
        # No link to a host is stopped, because every NIC accepts every frame.
        assert all(not port["port"].split(">")[1].startswith("h") for port in stopped)


def test_table_and_page_say_it_in_words(result: dict[str, Any], tmp_path: Path) -> None:
    lines = sentences(result)
    assert [line.partition(":")[0] for line in lines] == ["rocev2-pfc", "rocev2-credits", "mrc-pfc"]
    assert "of 20 links were paused" in lines[0]
    assert "head-of-line blocking" in lines[0]
    assert "of 20 links were out of credits" in lines[1]
    assert {row[0] for row in rows_of(result)} >= {"rocev2-pfc", "rocev2-credits"}
    text = StringIO()
    Console(width=80, file=text).print(render_result(result))
    assert "links were paused" in " ".join(text.getvalue().split())
    page = result_page(tmp_path, result, None)
    assert "Links that stopped" in page
    assert "p0-t1-0 to p0-t0-1" in page


@pytest.mark.parametrize("name", ["rocev2-pfc", "rocev2-credits"])
def test_a_pause_storm_stops_flows_that_go_elsewhere(name: str, tmp_path: Path) -> None:
    asked = scenario(
        transports={name: SMALL},
        workload={"kind": "permutation", "ranks": 4, "message_bytes": 65536, "duration": "100 us"},
        faults=[{"kind": "pause-storm", "where": "h4-eth0", "at": "10 us", "duration": "60 us"}],
    )
    (found,) = carried_out(tmp_path, asked)[name]
    assert found.problem is None
    stopped = {port["port"]: port["stopped_us"] for port in found.flow_control["ports"]}
    assert stopped["p0-t0-1>h4"] == pytest.approx(56, abs=5)  # the first credits last for a while
    assert stopped["p0-t1-0>p0-t0-1"] > 30  # a flow to h5 also uses this link
    rates = sorted(found.metrics["flow_mbps"])
    assert rates[1] < 0.8 * rates[3]


def refused(asked: Scenario) -> str:
    with pytest.raises(InputError) as error:
        asked.check_against(asked.fabric())
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("target", ["auto", "ebpf", "bmv2"])
@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ({"rocev2-pfc": {}}, "lossless links (pfc)"),
        ({"rocev2-credits": {}}, "lossless links (credit)"),
        ({"rocev2": {"routing": "destination"}}, "routing by destination"),
    ],
)
def test_switches_that_run_have_no_lossless_links(target: str, entry: dict[str, Any], what: str) -> None:
    text = refused(scenario(target=target, transports=entry))
    assert f"only --target sim has {what}" in text


def test_a_storm_needs_links_that_can_be_paused() -> None:
    storm = [{"kind": "pause-storm", "where": "h7-eth0", "at": "50 us"}]
    assert "nothing can pause" in refused(scenario(transports=["rocev2", "rocev2-pfc"], faults=storm))
    spared = {"rocev2": {"faults": False}, "rocev2-pfc": {}}
    asked = scenario(transports=spared, faults=storm)
    asked.check_against(asked.fabric())


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ({"tcp": {"lossless": "pfc"}}, "kernel's NIC"),
        ({"rocev2": {"buffer": "64 KiB"}}, "give lossless, too"),
        ({"mrc": {"routing": "destination"}}, "does not work with routing destination"),
    ],
)
def test_what_makes_no_sense_is_refused(entry: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        scenario(transports=entry)


def test_a_victim_crosses_the_fabric_where_racks_are_large() -> None:
    asked = scenario()
    fabric = asked.fabric()
    placement = asked.placement(fabric, 1)
    src, dst = (fabric.host(placement.hosts[end]) for end in placement.pairs[-1])
    assert (src.rack, dst.rack) == (0, 1)
    assert src.name not in {placement.hosts[a] for a, _ in placement.pairs[:-1]}


def test_links_may_drop_and_buffers_differ() -> None:
    asked = scenario(
        transports={
            "plain": {"use": "rocev2-pfc", "lossless": "drops"},
            "small": {"use": "rocev2-pfc", "buffer": "64 KiB"},
        }
    )
    plain, small = asked.transports
    assert (plain.lossless, small.lossless, small.buffer_bytes) == ("", "pfc", 65536)
    assert "lossless" not in asked.to_dict()["transports"][0]
