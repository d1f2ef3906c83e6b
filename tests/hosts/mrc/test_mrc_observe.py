"""Counters and logs of a run."""

import json
from dataclasses import is_dataclass

import mrclab.hosts.mrc.events
import mrclab.hosts.rdma.events
from mrclab.hosts import eventlog
from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.mrc.events import EvRetired
from mrclab.hosts.rdma.events import Event, LossReason, PacketLost, SendCompleted
from tests.support.mrc_sim import Network, Sim, ev_value


def finished(**network):
    sim = Sim(seed=9, network=Network(**network), config=MrcConfig(probe_interval_ns=1 << 40))
    where = sim.ends[1].register_memory(bytearray(1 << 20))
    sim.network.dead.add(ev_value(2, 3))
    sim.ends[0].deny([ev_value(1, 1)], sim.now_ns)
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(1 << 20), where.address, where.rkey)
    sim.run(until=lambda: bool(sim.of(0, SendCompleted)))
    return sim


def test_plane_counters_add_up_to_those_of_the_qp():
    sim = finished(ce=0.1, trim=0.02)
    planes = sim.ends[0].plane_counters(sim.qpns[0])
    qp = sim.ends[0].qp_counters(sim.qpns[0])
    assert sum(p.sent for p in planes) == qp.sent
    assert [(p.plane, p.assumed_bad, p.denied) for p in planes] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 1, 0),
        (3, 0, 0),
    ]
    assert all(p.active + p.spare + p.assumed_bad + p.denied == 8 for p in planes)
    assert [p.retired for p in planes] == [0, 1, 1, 0]
    assert sum(p.ecn_marked for p in planes) > 0
    assert sum(p.trimmed for p in planes) == sum(
        e.reason is LossReason.TRIMMED for e in sim.of(0, PacketLost)
    )
    sim.ends[0].set_port_state(3, False, sim.now_ns)
    assert [p.local_up for p in sim.ends[0].plane_counters(sim.qpns[0])] == [True, True, True, False]


def test_qlog_records_are_json_with_time_in_ms():
    sim = finished()
    log = [eventlog.record(e, reference_ns=1_000_000) for e in sim.events[0]]
    assert json.loads(json.dumps(log)) == log
    retired = next(e for e in sim.of(0, EvRetired) if e.ev == ev_value(2, 3))
    entry = next(r for r in log if r["data"].get("reason") == "loss" and r["name"].startswith("mrc:path"))
    assert entry["name"] == "mrc:path:ev_retired"
    assert entry["time"] == (retired.t_ns - 1_000_000) / 1e6
    assert entry["data"]["ev"] == retired.ev
    assert eventlog.header("run", "h0", 5)["trace"]["common_fields"]["reference_time_ns"] == 5


def test_every_kind_of_event_has_a_category():
    named = [*vars(mrclab.hosts.mrc.events).values(), *vars(mrclab.hosts.rdma.events).values()]
    kinds = {k for k in named if is_dataclass(k) and issubclass(k, Event)} - {Event}
    assert kinds == set(eventlog.CATEGORY)
