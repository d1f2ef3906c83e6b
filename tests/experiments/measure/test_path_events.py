"""Events of senders' paths (lost, retired, replaced, skipped), from ranks' columns and agents' logs."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from mrclab.experiments.measure import events
from mrclab.experiments.measure.events import Event, EventLog, path_events
from mrclab.experiments.measure.evidence import Evidence, Sample
from mrclab.hosts.collectives.verbs_channel import VerbsChannel
from mrclab.hosts.mrc.events import EvReplaced, EvRetired, EvSkipped, RetireReason
from mrclab.hosts.rdma.events import LossReason, PacketLost
from mrclab.hosts.transports.table import TRANSPORTS
from mrclab.topologies import Fabric

COLUMNS = {
    "lost": [("ns", [30_000, 20_000]), ("qpn", [7, 8]), ("ev", [1, 2]), ("trimmed", [0, 1])],
    "retired": [("ns", [31_000]), ("qpn", [7]), ("ev", [1])],
    "replaced": [("ns", [31_000]), ("qpn", [7]), ("ev", [1]), ("new_ev", [3])],
    "skipped": [("ns", [5000, 6000]), ("qpn", [7, 7]), ("ev", [16, 16])],
}
SAMPLE: Sample = {
    f"event_{kind}_{name}": np.array(values, np.int64)
    for kind, columns in COLUMNS.items()
    for name, values in columns
}


@pytest.fixture
def evidence(lab: Fabric) -> Evidence:
    return Evidence(
        TRANSPORTS["mrc"],
        0,
        1,
        lab,
        ("h0", "h6"),
        ((0, 1),),
        {"kind": "stream"},
        10_000,
        10**9,
        samples=({}, SAMPLE),
    )


def test_columns_become_rows_without_trims(evidence: Evidence) -> None:
    found = path_events(evidence, {})
    assert found["lost"] == [[20.0, 1, 7, 1]]
    assert found["retired"] == [[21.0, 1, 7, 1]]
    assert found["replaced"] == [[21.0, 1, 7, 1, 3]]
    assert found["restored"] == []
    assert found["skipped"] == {"0x10": 2}
    assert found["left_out"] == 0


def test_logs_say_the_same(evidence: Evidence) -> None:
    log = EventLog.of_events(
        [
            Event(30_000, "PacketLost", {"qpn": 7, "ev": 1, "reason": "gap"}),
            Event(20_000, "PacketLost", {"qpn": 8, "ev": 2, "reason": "trimmed_lasthop"}),
            Event(31_000, "EvRetired", {"qpn": 7, "ev": 1, "reason": "loss"}),
            Event(31_000, "EvReplaced", {"qpn": 7, "ev": 1, "new_ev": 3}),
            Event(5000, "EvSkipped", {"qpn": 7, "ev": 16, "trimmed": False}),
            Event(6000, "EvSkipped", {"qpn": 7, "ev": 16, "trimmed": True}),
        ]
    )
    from_log = path_events(replace(evidence, samples=()), {"h6": log})
    assert from_log == path_events(evidence, {})


def test_what_is_left_out_is_counted(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_EVENTS", 0)
    found = path_events(evidence, {})
    assert (found["lost"], found["left_out"]) == ([], 3)


def test_a_channel_has_the_columns(evidence: Evidence) -> None:
    channel = VerbsChannel(cast(Any, SimpleNamespace(create_cq=list)), 1)
    channel._log += [
        PacketLost(30_000, 7, 5, 1, 0, LossReason.GAP, 1000),
        PacketLost(20_000, 8, 6, 2, 0, LossReason.TRIMMED, 1000),
        EvRetired(31_000, 7, 1, 0, RetireReason.LOSS, 5),
        EvReplaced(31_000, 7, 1, 3, 0),
        EvSkipped(5000, 7, 16, 0, False),
        EvSkipped(6000, 7, 16, 0, True),
    ]
    sample = {f"event_{name}": np.array(v, np.int64) for name, v in channel.event_columns().items()}
    found = path_events(replace(evidence, samples=({}, sample)), {})
    assert found == path_events(evidence, {})
