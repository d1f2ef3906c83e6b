"""Graphs of operations, executed by all ranks over a network in memory."""

from __future__ import annotations

from typing import Any

import pytest

from mrclab.hosts.collectives.communicator import Times
from mrclab.hosts.workloads import player
from mrclab.hosts.workloads.graph import Graph, Op, matched
from mrclab.hosts.workloads.player import GraphJob, Plan, pattern
from mrclab.hosts.workloads.schedules import SCHEDULES
from mrclab.hosts.workloads.sources import llm_source
from mrclab.hosts.workloads.training_steps import LlmStep
from tests.support.memory_network import communicators, drive

TIMES = Times(1_000_000, 2_000_000)
SMALL = {"hidden": 16, "tokens": 16, "microbatches": 2}


def play(params: dict[str, Any], size: int, seed: int = 1) -> list[GraphJob]:
    network, comms = communicators(size, seed)
    jobs = [GraphJob(params, rank, size, seed) for rank in range(size)]
    for job, comm in zip(jobs, comms, strict=True):
        job.prepare(comm)
    drive(network, comms, [job.steps(comm, TIMES) for job, comm in zip(jobs, comms, strict=True)])
    return jobs


def of_graph(monkeypatch: pytest.MonkeyPatch, *ranks: tuple[Op, ...], **params: Any) -> list[GraphJob]:
    graph = matched(Graph("g", ranks))
    monkeypatch.setattr(player, "plan_of", lambda params: Plan(graph, params.get("algorithms", {}), 1))
    return play(params, len(ranks))


def test_a_step_of_training_is_played_as_often_as_asked() -> None:
    step = LlmStep(data=2, tensor=2, pipeline=2, expert=2, layers=2, **SMALL)
    source = llm_source({name: getattr(step, name) for name in step.__slots__})
    for job in play({"source": source, "steps": 2, "warmup_steps": 1}, step.ranks):
        assert job.problem is None
        found = job.samples()
        assert found["step"].tolist() == [0, 1]
        assert found["start_ns"][0] >= TIMES.measure_ns
        assert (found["end_ns"] - found["start_ns"] > found["compute_ns"]).all()
        assert (found["op_end_ns"] >= found["op_start_ns"]).all()


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in SCHEDULES for name in SCHEDULES[kind]])
def test_every_collective_is_played(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    group = (3, 1, 0)
    op = Op(1, "collective", size_bytes=100, collective=kind, group=group)
    jobs = of_graph(monkeypatch, (op,), (op,), (), (op,), algorithms={kind: name})
    assert [job.problem for job in jobs] == [None] * 4
    assert jobs[0].peers() >= {3}


def test_large_messages_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(player, "PUT_BYTES", 64)
    sent = Op(1, "send", size_bytes=1000, peer=1)
    then = Op(2, "compute", after=(1,), duration_ns=5_000)
    got = Op(1, "receive", size_bytes=1000, peer=0)
    jobs = of_graph(monkeypatch, (sent, then), (got,))
    assert [job.problem for job in jobs] == [None, None]
    assert jobs[0].samples()["compute_ns"].tolist() == [5_000]


def test_a_stream_computes_one_operation_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = [Op(n, "compute", duration_ns=10_000, stream=stream) for n, stream in enumerate((1, 1, 0))]
    found = of_graph(monkeypatch, tuple(ops), ())[0].samples()
    spans = sorted(zip(found["op_start_ns"].tolist(), found["op_end_ns"].tolist(), strict=True))
    assert spans[0][0] == spans[1][0]
    assert spans[2][0] >= spans[0][1]


def test_wrong_bytes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, got = Op(1, "send", size_bytes=100, peer=1), Op(1, "receive", size_bytes=100, peer=0)
    network, comms = communicators(2, 1)
    graph = matched(Graph("g", ((sent,), (got,))))
    monkeypatch.setattr(player, "plan_of", lambda _params: Plan(graph, {}, 1))
    jobs = [GraphJob({}, rank, 2, 1) for rank in range(2)]
    for job, comm in zip(jobs, comms, strict=True):
        job.prepare(comm)
    bad = bytearray(pattern(100))
    bad[5] = 77
    monkeypatch.setattr(player.Exchange, "_data_of", lambda _self, length: memoryview(bad)[:length])
    drive(network, comms, [job.steps(comm, TIMES) for job, comm in zip(jobs, comms, strict=True)])
    assert jobs[1].problem == "rank 1: byte 5 of the received data is 77"
