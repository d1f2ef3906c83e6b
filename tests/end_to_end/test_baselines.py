"""Every baseline on a running fabric: the data is right, faults cause losses, and routes change."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Mrclab

pytestmark = [pytest.mark.root, pytest.mark.slow]

# With 16 queue pairs between two racks, both T1s carry traffic. So a cut of either link causes losses.
STREAM = """\
name: cut
description: a link dies under a stream
claim: it goes on when the route is withdrawn
topology: {name: pair, planes: 1, t0: 2, t1: 2, hosts: 2,
           links: {host: {rate: 100 Mbit/s}, fabric: {rate: 100 Mbit/s}}}
target: ebpf
transports: {ecmp+controller: {detection: 90 ms, options: {qps: 16}}}
workload: {kind: stream, message_bytes: 8 KiB, rate: 8 Mbit/s, duration: 1500 ms}
faults:
  - {kind: blackhole, where: "p0-t0-0:p0-t1-0", at: 500 ms}
repetitions: 1
warmup: 200 ms
limit: 60 s
rehearse: no
"""


def run(mrclab: Mrclab, tmp_path: Path, text: str) -> dict[str, Any]:
    (tmp_path / "base.yaml").write_text(text)
    mrclab.ok("run", str(tmp_path / "base.yaml"), "--out", str(tmp_path / "out"))
    result: dict[str, Any] = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["integrity"] == "ok"
    return result


def test_a_megabyte_arrives_equal_over_ecmp(mrclab: Mrclab, tmp_path: Path, machine: None) -> None:
    """With each baseline, four ranks run an all-reduce of 1 MiB, and each rank checks every bit."""
    names = mrclab.names
    words = ["-m", "tests.support.baselines_fabric", names.prefix, str(names.state_dir), str(tmp_path)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found) == ["rocev2", "rocev2-16qp", "tcp", "tcp-3", "mptcp"]
    for name in ("rocev2", "rocev2-16qp"):
        assert (
            found[name]["placed_packets"]
            == found[name]["sent_packets"] - found[name]["retransmitted_packets"]
        )
    assert found["tcp"]["sent_packets"] > 1 << 10
    # Four ranks have six connections. Both ends count one subflow in each plane.
    assert found["mptcp"]["subflows"] == 24


def test_routes_follow_a_dead_link_after_the_detection_time(
    mrclab: Mrclab, tmp_path: Path, machine: None
) -> None:
    result = run(mrclab, tmp_path, STREAM)
    [trial] = result["trials"]
    assert trial["recovered_us"] > 60_000, "not before the link was found dead"
    # Nobody repairs the link. If the routes had not been withdrawn, the transport could not recover.
    assert trial["fault"]["kind"] == "blackhole"
