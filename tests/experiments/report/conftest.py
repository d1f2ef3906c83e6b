"""Results in the present format, made from synthetic captures of two transports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mrclab.experiments.measure.evidence import Evidence
from mrclab.experiments.measure.recording import load_recording
from mrclab.experiments.measure.repetition import measure
from mrclab.experiments.report.build import Run, build
from mrclab.experiments.result.file import save_result
from mrclab.hosts.transports.table import TRANSPORTS
from mrclab.topologies import Fabric
from tests.support.synthetic_run import Story


@pytest.fixture(scope="session")
def evidence(story: Story, told: Path, lab: Fabric) -> Evidence:
    """Return the evidence of a run that sprays packets from h0 to h6, with a dozen cuts."""
    end_ns = max(record.t_ns for record in story.wire.receiver)
    return Evidence(
        transport=TRANSPORTS["mrc"],
        number=0,
        seed=1,
        fabric=lab,
        hosts=("h0", "h6"),
        pairs=((0, 1),),
        workload={"kind": "spray", "message_bytes": 4096, "payload_bytes": 256, "rate_bps": 10**7},
        measure_ns=story.faults[0].t_before_ns - 50_000_000,
        end_ns=end_ns,
        faults=story.faults,
        captures={"h0": told / "sender.pcap", "h6": told / "receiver.pcap"},
        recording=load_recording(told / "recording.json"),
        event_logs={"h0": told / "sender.jsonl", "h6": told / "receiver.jsonl"},
        bytes_delivered=1_000_000,
        details={"stream": {"rate_bps": 9_000_000}},
    )


PARAMETERS = {
    "description": "a spray with cuts",
    "topology": "lab",
    "workload": {
        "kind": "spray",
        "src": "auto",
        "dst": "auto",
        "message_bytes": 4096,
        "payload_bytes": 256,
        "rate_bps": 10**7,
        "duration_ns": 0,
    },
    "repetitions": 1,
}


@pytest.fixture(scope="session")
def spray(evidence: Evidence) -> dict[str, Any]:
    """Return the result of one transport with captures and pictures of packets."""
    run = Run("link-kill", PARAMETERS, "ebpf", "lab", 1, (TRANSPORTS["mrc"],), {"cpus_usable": 2})
    return build(run, {"mrc": [measure(evidence)]})


@pytest.fixture(scope="session")
def both(evidence: Evidence, lab: Fabric) -> dict[str, Any]:
    """Return the result of two transports: MRC with captures, and TCP with only the times of its messages."""
    posted = np.arange(2000, dtype=np.int64) * 2_000_000 + evidence.measure_ns - 100_000_000
    sample = {
        "flow0_posted_ns": posted,
        "series_t_ns": posted,
        "series_bytes": np.arange(2000, dtype=np.int64) * 4096,
    }
    peer = {
        "flow0_numbers": np.arange(2000),
        "flow0_arrived_ns": posted + 200_000,
        "series_t_ns": posted,
        "series_bytes": np.arange(2000, dtype=np.int64) * 4096,
    }
    tcp = replace(
        evidence,
        transport=TRANSPORTS["tcp"],
        captures={},
        recording=None,
        event_logs={},
        samples=(sample, peer),
        flow_bytes=(4096,),
        length_ns=evidence.end_ns - evidence.measure_ns,
        workload={"kind": "stream"},
        details={},
    )
    transports = (TRANSPORTS["mrc"], TRANSPORTS["tcp"])
    run = Run("two", PARAMETERS, "ebpf", "lab", 1, transports, {}, claim="a claim", figure="headline")
    return build(run, {"mrc": [measure(evidence)], "tcp": [measure(tcp)]})


@pytest.fixture(scope="session")
def spray_directory(spray: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("spray")
    save_result(directory, spray)
    return directory
