"""Path probes and counters on a running fabric."""

import json
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.hosts.path_probe import build_probe, probed_paths, read_probe
from mrclab.topologies import load_fabric
from tests.support.command import Mrclab, Up

TINY = load_fabric("tiny")


@pytest.mark.root
def test_probes_name_every_hop_in_order_and_tell_the_time(tiny: Up) -> None:
    answer = json.loads(tiny.mrclab.ok("probe", "h0", "h2", "--all", "-n", "5", "--json"))
    assert [tuple(path["switches"]) for path in answer] == [
        p.switches for p in probed_paths(TINY, "h0", "h2")
    ]
    for path in answer:
        assert len(path["probes"]) == 5
        for echo in path["probes"]:
            assert [hop["switch"] for hop in echo["hops"]] == path["switches"]
            moments = [
                echo["sent_ns"] // 1000,
                *(hop["arrived_us"] for hop in echo["hops"]),
                echo["back_ns"] / 1000,
            ]
            assert moments == sorted(moments)
    said = tiny.mrclab.ok("probe", "h0", "--path", "p1-t1-1")
    assert "h0 > p1-t0-0 > p1-t1-1 > p1-t0-0 > h0: 20 of 20 back" in said
    assert "rtt us: min" in said


@pytest.mark.root
def test_a_path_that_loses_all_is_told(tiny: Up) -> None:
    tiny.mrclab.ok("fault", "blackhole", "p0-t0-0:p0-t1-0")
    try:
        lost = tiny.mrclab("probe", "h0", "h3", "--path", "p0-t1-0", "-n", "1")
        assert lost.returncode == 1
        assert "0 of 1 back" in lost.stdout
    finally:
        tiny.mrclab.ok("restore", "--all")


@pytest.mark.root
def test_bad_input_is_one_line(tiny: Up) -> None:
    for words, said in (
        (("h9",), "no host 'h9'"),
        (("h0", "h0"), "no path to itself"),
        (("h0", "h2", "--path", "p9-t1-0"), "no path uses 'p9-t1-0'"),
        (("h0", "-n", "0"), "from 1 to"),
    ):
        refused = tiny.mrclab("probe", *words)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert said in refused.stderr


@pytest.mark.root
def test_status_counts_ports_and_sids_and_watches(tiny: Up) -> None:
    def hits() -> int:
        sids = tiny.mrclab.status()["switches"]["p0-t1-0"]["counters"]["sids"]
        return int(sids[str(TINY.sid(TINY.switch("p0-t1-0").usid))]["packets"])

    before = hits()
    tiny.mrclab.ok("probe", "h0", "h2", "--path", "p0-t1-0", "-n", "7")
    assert hits() - before == 14  # 7 probes on the way there, 7 on the way back
    assert "p0-t0-0-eth1" in tiny.mrclab.ok("status", "--ports")
    assert str(TINY.sid(TINY.switch("p0-t1-0").usid)) in tiny.mrclab.ok("status", "--sids")
    command = tiny.mrclab.command("status", "--watch", "50 ms")
    with subprocess.Popen(
        command, env=tiny.mrclab.environment, stdout=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        assert "topology tiny" in watching.stdout.readline()
        watching.terminate()


@pytest.mark.root
def test_status_refuses_an_interval_that_is_none(mrclab: Mrclab) -> None:
    assert mrclab("status", "--watch", "often").returncode == 2


@given(st.binary(max_size=400))
def test_anything_from_the_wire_is_a_probe_or_a_value_error(data: bytes) -> None:
    frame = build_probe(TINY, probed_paths(TINY, "h0", "h2")[0], 1, 2)
    for wire in (data, frame[:62] + data, frame[:64] + data):
        try:
            read_probe(TINY, wire)
        except ValueError:
            continue
