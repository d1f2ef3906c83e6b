"""Training: in whatever order puts arrive, every rank comes to the bits of one process."""

import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hosts.collectives.algorithms import DATA, all_reduce, ring_sum
from hosts.collectives.collective_jobs import expose_for_collectives
from hosts.collectives.job import Times
from hosts.training.accelerator import Accelerator
from hosts.training.compute import HereCompute
from hosts.training.job import TransformerJob
from hosts.training.model import Model
from hosts.training.settings import Settings, Text, batch_of
from hosts.training.xla import require_jax
from linux.errors import MachineError
from tests.support.memory_network import communicators, drive
from tests.support.paths import ROOT
from tests.support.training import SMALL, needs_jax

TIMES = Times(1_000_000, 5_000_000)


@given(
    hnp.arrays(
        np.float32, st.tuples(st.integers(2, 5), st.integers(1, 40)), elements=st.floats(-1e6, 1e6, width=32)
    ),
    st.integers(0, 99),
)
def test_one_process_adds_in_the_order_of_the_ring(parts: np.ndarray[Any, Any], seed: int) -> None:
    size, count = parts.shape
    network, comms = communicators(size, seed)
    for comm, part in zip(comms, parts, strict=True):
        expose_for_collectives(comm, count, np.dtype(np.float32), scratch=True)
        np.frombuffer(comm.regions[DATA], np.float32, count)[:] = part
    drive(network, comms, [all_reduce(comm, count, np.float32) for comm in comms])
    wanted = ring_sum(list(parts)).tobytes()
    assert all(bytes(comm.regions[DATA]) == wanted for comm in comms)


def train(size: int, network_seed: int, steps: int = 3) -> list[TransformerJob]:
    params = {**SMALL, "steps": steps, "compute_ns": 300_000, "in_process": True}
    network, comms = communicators(size, network_seed)
    jobs = [TransformerJob(params, rank, size, seed=7) for rank in range(size)]
    for job, comm in zip(jobs, comms, strict=True):
        job.prepare(comm)
    drive(network, comms, [job.steps(comm, TIMES) for job, comm in zip(jobs, comms, strict=True)])
    return jobs


def alone(size: int, steps: int = 3) -> np.ndarray[Any, Any]:
    """Return the digests of one process, which is another one than this."""
    settings = Settings.of(SMALL, size, seed=7)
    argv = [sys.executable, "-m", "hosts.training.alone", json.dumps(asdict(settings)), str(steps)]
    found = json.loads(subprocess.run(argv, check=True, capture_output=True, cwd=ROOT).stdout)
    return np.frombuffer(bytes.fromhex("".join(found)), np.int64)


@needs_jax
def test_every_rank_has_the_bits_of_one_process_after_every_step() -> None:
    wanted = alone(3)
    for job in train(3, network_seed=2):
        samples = job.samples()
        assert samples["digests"].tolist() == wanted.tolist()
        assert len(samples["loss_e9"]) == 3
        assert (samples["computed_ns"] - samples["start_ns"] >= 300_000).all()
        assert (samples["end_ns"] >= samples["reduced_ns"]).all()


@needs_jax
def test_a_wrong_gradient_shows_from_its_step_on(monkeypatch: pytest.MonkeyPatch) -> None:
    right, begin = alone(2, 2), HereCompute.begin

    def spoilt(self: HereCompute, step: int) -> None:
        begin(self, step)
        if step == 1 and self.rank == 1:
            self.vector[np.abs(self.vector).argmax()] *= 1.01

    monkeypatch.setattr(HereCompute, "begin", spoilt)
    for job in train(2, 1, steps=2):
        found = job.samples()["digests"]
        assert found[:8].tolist() == right[:8].tolist()
        assert found[8:].tolist() != right[8:].tolist()


@needs_jax
def test_an_accelerator_computes_the_same_as_this_process_and_tells_its_end() -> None:
    settings = Settings.of(SMALL, 2, seed=7)
    here, there = HereCompute(settings, 1), Accelerator(settings, 1)
    try:
        there.warm_up()
        for step in range(3):
            for replica in (here, there):
                replica.begin(step)
            select.select([there.descriptor], [], [])
            assert there.done()
            assert there.loss == here.loss
            assert there.digest.tolist() == here.digest.tolist()
            assert there.vector.tobytes() == here.vector.tobytes()
        os.kill(there.pid, signal.SIGKILL)
        select.select([there.descriptor], [], [])
        with pytest.raises(RuntimeError, match="the accelerator ended with code -9"):
            there.begin(3)
    finally:
        there.close()


@needs_jax
def test_it_learns() -> None:
    settings = Settings.of(SMALL, 1, seed=7)
    model, text, losses = Model(settings, Text.shipped()), Text.shipped(), []
    for step in range(200):
        loss, gradient = model.gradient(step, 0)
        losses.append(loss)
        model.update(step, gradient)
    assert losses[0] == pytest.approx(np.log(len(text.alphabet)), rel=0.02)
    assert np.mean(losses[-20:]) < losses[0] - 0.5


def test_batches_are_of_the_text_and_differ_by_step_and_rank() -> None:
    text, settings = Text.shipped(), Settings.of(SMALL, 2, seed=7)
    whole = text.tokens.tobytes()
    batches = [batch_of(text, settings, step, rank) for step in range(3) for rank in range(2)]
    assert all(row.tobytes() in whole for batch in batches for row in batch)
    assert len({batch.tobytes() for batch in batches}) == 6
    assert batches[3].tobytes() == batch_of(text, settings, 1, 1).tobytes()


def test_where_jax_is_missing_the_mend_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hosts.training.xla.find_spec", lambda name: None)
    with pytest.raises(MachineError, match=r"needs Python's 'jax': pip install 'mrclab\[training\]'"):
        require_jax()
