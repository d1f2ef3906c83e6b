"""Jobs over a network in memory: their data arrives, is checked, and is recorded."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrclab.hosts.collectives.communicator import Job, Times
from mrclab.hosts.collectives.message_jobs import Flow, FlowsJob
from mrclab.hosts.collectives.rank import make_job
from tests.support.memory_network import MemoryNetwork, communicators, drive

TIMES = Times(1_000_000, 5_000_000)


def run(kind: str, params: dict[str, Any], size: int, seed: int = 1) -> list[Job]:
    network, comms = communicators(size, seed)
    jobs = [make_job(kind, params, rank, size, seed) for rank in range(size)]
    for job, comm in zip(jobs, comms, strict=True):
        job.prepare(comm)
    drive(network, comms, [job.steps(comm, TIMES) for job, comm in zip(jobs, comms, strict=True)])
    return jobs


def flow(src: int, dst: int, **changes: Any) -> dict[str, Any]:
    usual = {"message_bytes": 64, "depth": 4, "rate_bps": 5_000_000, "duration_ns": 2_000_000, "seed": 7}
    return {"src": src, "dst": dst, **usual, **changes}


@pytest.mark.parametrize("kind", ["all-reduce", "all-gather", "all-to-all"])
def test_a_sweep_of_a_collective_notes_every_operation(kind: str) -> None:
    params = {"sizes_bytes": [16, 1000], "dtype": "int32", "warmup_iterations": 1, "iterations": 3}
    jobs = run(kind, params, 4)
    for job in jobs:
        assert job.problem is None
        samples = job.samples()
        assert samples["iteration"].tolist() == [0, 1, 2] * 2
        assert samples["bytes"].tolist() == [16] * 3 + [992 if kind == "all-to-all" else 1000] * 3
        assert (samples["end_ns"] > samples["start_ns"]).all()
        assert samples["start_ns"][0] >= TIMES.measure_ns


def test_training_computes_as_long_as_it_should() -> None:
    params = {"size_bytes": 400, "dtype": "float32", "compute_ns": 300_000, "steps": 4}
    for job in run("training", params, 3):
        assert job.problem is None
        samples = job.samples()
        assert len(samples["end_ns"]) == 4
        assert (samples["computed_ns"] - samples["start_ns"] >= 300_000).all()
        assert (samples["reduced_ns"] > samples["computed_ns"]).all()


def test_requests_are_answered_one_by_one() -> None:
    params = {"message_bytes": 40, "response_bytes": 80, "duration_ns": 500_000, "seed": 1}
    client, server = run("request-response", params, 2)
    assert client.problem is None
    assert server.problem is None
    samples = client.samples()
    assert len(samples["sent_ns"]) == len(samples["answered_ns"]) > 3
    assert (samples["answered_ns"] > samples["sent_ns"]).all()


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.integers(2, 5), st.integers(0, 2**32), st.integers(1, 6), st.sampled_from([0, 5_000_000]))
def test_every_message_of_every_flow_arrives_once(size: int, seed: int, depth: int, rate: int) -> None:
    chooser = random.Random(seed)
    ends = [chooser.sample(range(size), 2) for _ in range(4)]
    flows = [flow(a, b, depth=depth, rate_bps=rate, duration_ns=100_000) for a, b in ends]
    jobs = run("flows", {"flows": flows}, size, seed)
    assert all(job.problem is None for job in jobs)
    for number, (src, dst) in enumerate(ends):
        posted = jobs[src].samples()[f"flow{number}_posted_ns"]
        received = jobs[dst].samples()
        assert sorted(received[f"flow{number}_numbers"].tolist()) == list(range(len(posted)))
        assert len(posted) > 0
        assert (jobs[src].samples()[f"flow{number}_done_ns"] >= posted).all()


def test_a_paced_flow_keeps_its_interval() -> None:
    src, _ = run("flows", {"flows": [flow(0, 1)]}, 2)
    posted = src.samples()["flow0_posted_ns"]
    assert Flow(**flow(0, 1)).interval_ns == 102_400
    assert np.diff(posted).mean() == pytest.approx(102_400, rel=0.02)


def test_flows_that_forget_what_is_over_keep_no_more_than_what_is_under_way() -> None:
    network, comms = communicators(2, 1)
    jobs = [FlowsJob({"flows": [flow(0, 1, depth=4)]}, rank) for rank in range(2)]
    for job, comm in zip(jobs, comms, strict=True):
        job.prepare(comm)
    most = 0
    before = MemoryNetwork.move

    def forget() -> bool:
        nonlocal most
        for job in jobs:
            job.forget()
        most = max(most, *(len(one) for job in jobs for one in job.samples().values()))
        return before(network)

    network.move = forget  # type: ignore[method-assign]
    drive(network, comms, [job.steps(comm, TIMES) for job, comm in zip(jobs, comms, strict=True)])
    assert [job.problem for job in jobs] == [None, None]
    assert most <= 4


def test_a_message_that_is_changed_on_its_way_is_found_out() -> None:
    network, comms = communicators(2, 1)
    jobs = [FlowsJob({"flows": [flow(0, 1)]}, rank) for rank in range(2)]
    for job, comm in zip(jobs, comms, strict=True):
        job.prepare(comm)
    before = MemoryNetwork.move

    def spoil() -> bool:
        moved = before(network)
        network.channels[1].regions[0][30] ^= 1
        return moved

    network.move = spoil  # type: ignore[method-assign]
    drive(network, comms, [job.steps(comm, TIMES) for job, comm in zip(jobs, comms, strict=True)])
    problem = jobs[1].problem
    assert problem is not None
    assert "flow 0 to 1: message 0: byte 30 of 64 is not what was sent" in problem
