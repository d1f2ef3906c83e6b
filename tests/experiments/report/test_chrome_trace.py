"""A run as a trace for Perfetto: slices and instants on named tracks."""

import json
from pathlib import Path

import pytest

from mrclab.experiments.measure.faults import FaultRecord, save_faults
from mrclab.experiments.report.chrome_trace import trace_of
from mrclab.hosts.eventlog import write_log
from mrclab.hosts.mrc.events import EvRestored, EvRetired, PlaneDown, RetireReason
from mrclab.hosts.rdma.events import LossReason, PacketLost
from mrclab.linux.errors import InputError

EV = 0xC001


@pytest.fixture
def run(tmp_path: Path) -> Path:
    repetition = tmp_path / "mrc-0"
    (repetition / "events").mkdir(parents=True)
    fault = FaultRecord("blackhole", "p0-t0-0:p0-t1-1", 1_000_000, 1_002_000, 9_000_000, 9_000_000)
    save_faults(repetition / "faults.json", [fault])
    events = [
        EvRetired(1_500_000, 7, EV, 0, RetireReason.LOSS, 3),
        EvRestored(9_500_000, 7, EV, 0),
        PlaneDown(9_600_000, 7, 0, False),
    ]
    write_log(events, repetition / "events" / "h0.jsonl", "h0")
    return tmp_path


def test_faults_and_bad_evs_are_slices_on_tracks_of_their_own(run: Path) -> None:
    records = json.loads(json.dumps(trace_of(run)))["traceEvents"]
    names = {(r["pid"], r.get("tid")): r["args"]["name"] for r in records if r["ph"] == "M"}
    slices = {r["name"]: r for r in records if r["ph"] == "X"}
    fault, bad, down = slices["blackhole"], slices["assumed bad"], slices["down"]
    assert names[fault["pid"], None] == "mrc-0: faults"
    assert names[fault["pid"], fault["tid"]] == "p0-t0-0:p0-t1-1"
    assert (fault["ts"], fault["dur"]) == (1.0, 7999.0)
    assert names[bad["pid"], bad["tid"]] == f"QP 7, EV {EV:#x}"
    assert (bad["ts"], bad["dur"]) == (500.0, 8000.0)
    assert names[down["pid"], down["tid"]] == "plane 0"


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no event logs"):
        trace_of(tmp_path)


def test_losses_are_instants(tmp_path: Path) -> None:
    events = tmp_path / "mrc-0" / "events"
    events.mkdir(parents=True)
    write_log([PacketLost(10, 1, 5, EV, 0, LossReason.GAP, 4)], events / "h0.jsonl", "h0")
    [instant] = [r for r in trace_of(tmp_path)["traceEvents"] if r["ph"] == "i"]
    assert instant["name"] == "PacketLost"
    assert instant["ts"] == 0.0
