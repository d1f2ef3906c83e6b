"""Every baseline on a fabric that is up for it: data is right, faults are felt, routes follow."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Mrclab

pytestmark = [pytest.mark.root, pytest.mark.slow]

COLLECTIVE = """\
name: moved
description: the same bytes over every baseline
claim: all of them arrive
topology: tiny
target: ebpf
transports: {transports}
workload: {{kind: all-reduce, sizes: [1 MiB], iterations: 1, warmup_iterations: 0}}
warmup: 0 ms
limit: 60 s
"""
# Two hosts of different racks, one connection between them: it goes over one of two T1s.
STREAM = """\
name: cut
description: a link dies under a stream
claim: it goes on when the route is withdrawn
topology: {{name: pair, planes: 1, t0: 2, t1: 2, hosts: 2,
           links: {{host: {{rate: 100 Mbit/s}}, fabric: {{rate: 100 Mbit/s}}}}}}
target: ebpf
transports: {transports}
workload: {{kind: stream, message_bytes: 8 KiB, rate: 8 Mbit/s, duration: {duration}}}
faults:
  - {{kind: blackhole, where: "p0-t0-0:p0-t1-*", at: 300 ms, pick: 1, duration: 0 ms}}
repetitions: {repetitions}
warmup: 200 ms
limit: 60 s
"""


def run(mrclab: Mrclab, tmp_path: Path, text: str) -> dict[str, Any]:
    (tmp_path / "base.yaml").write_text(text)
    mrclab.ok("run", str(tmp_path / "base.yaml"), "--out", str(tmp_path / "out"))
    result: dict[str, Any] = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["integrity"] == "ok"
    return result


def test_a_megabyte_arrives_equal_over_ecmp(mrclab: Mrclab, tmp_path: Path, machine: None) -> None:
    names = ["rocev2", "rocev2-16qp", "tcp"]
    result = run(mrclab, tmp_path, COLLECTIVE.format(transports=json.dumps(names)))
    assert list(result["transports"]) == names
    for found in result["transports"].values():
        assert found["summary"]["busbw_gbps@1MiB"]["n"] == 4


def test_mptcp_uses_every_plane(mrclab: Mrclab, tmp_path: Path, machine: None) -> None:
    result = run(mrclab, tmp_path, COLLECTIVE.format(transports='["mptcp"]'))
    # A subflow per plane, at both ends of each of the six connections between four ranks.
    assert result["transports"]["mptcp"]["counters"]["subflows"] == 24


def test_routes_follow_a_dead_link_after_the_detection_time(
    mrclab: Mrclab, tmp_path: Path, machine: None
) -> None:
    """Of two repetitions with other seeds one or both are hit; whoever is hit waits for the withdrawal."""
    transports = "{ecmp+controller: {detection: 90 ms}, rocev2: {}}"
    result = run(mrclab, tmp_path, STREAM.format(transports=transports, duration="1500 ms", repetitions=4))
    reacting, static = (result["transports"][name] for name in ("ecmp+controller", "rocev2"))
    assert len(reacting["faults"]) == len(static["faults"]) == 4
