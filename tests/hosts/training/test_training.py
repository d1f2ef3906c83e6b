"""Training: puts arrive in any order, but every rank computes the same bits as a single process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mrclab.cli import main
from mrclab.hosts.collectives.collective_operations import DATA, all_reduce, expose_for_collectives, ring_sum
from mrclab.hosts.collectives.communicator import Times
from mrclab.hosts.training.accelerator import Accelerator
from mrclab.hosts.training.job import TransformerJob
from mrclab.hosts.training.model import Settings, Text, batch_of, require_jax
from mrclab.linux.errors import MachineError
from tests.support.memory_network import communicators, drive
from tests.support.paths import ROOT
from tests.support.training import SMALL, Patient, needs_jax, replicas

TIMES = Times(1_000_000, 5_000_000)
STEPS = 3
SETTINGS = Settings.of(SMALL, ranks=3, seed=7)


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


@pytest.fixture(scope="module")
def three() -> Iterator[list[Patient]]:
    with replicas(SETTINGS) as found:
        yield found


@pytest.fixture(scope="module")
def alone() -> np.ndarray[Any, Any]:
    """Return the expected hashes of the parameters, computed by one process."""
    argv = [sys.executable, "-m", "mrclab.hosts.training.alone", json.dumps(asdict(SETTINGS)), str(STEPS)]
    found = json.loads(subprocess.run(argv, check=True, capture_output=True, cwd=ROOT).stdout)
    return np.frombuffer(bytes.fromhex("".join(found)), np.int64)


def train(three: list[Patient], network_seed: int, monkeypatch: pytest.MonkeyPatch) -> list[TransformerJob]:
    monkeypatch.setattr("mrclab.hosts.training.job.HereCompute", lambda settings, rank: three[rank])
    params = {**SMALL, "steps": STEPS, "compute_ns": 300_000, "in_process": True}
    network, comms = communicators(3, network_seed)
    jobs = [TransformerJob(params, rank, 3, seed=7) for rank in range(3)]
    for job, comm in zip(jobs, comms, strict=True):
        job.prepare(comm)
    drive(network, comms, [job.steps(comm, TIMES) for job, comm in zip(jobs, comms, strict=True)])
    return jobs


@pytest.mark.slow
@needs_jax
def test_every_rank_has_the_bits_of_one_process_after_every_step(
    three: list[Patient], alone: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for job in train(three, 2, monkeypatch):
        samples = job.samples()
        assert samples["digests"].tolist() == alone.tolist()
        assert len(samples["loss_e9"]) == STEPS
        assert (samples["computed_ns"] - samples["start_ns"] >= 300_000).all()
        assert (samples["end_ns"] >= samples["reduced_ns"]).all()


@needs_jax
@pytest.mark.slow
def test_a_wrong_gradient_shows_from_its_step_on(
    three: list[Patient], alone: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Patient.begin

    def spoilt(self: Patient, step: int) -> None:
        begin(self, step)
        if step == 1 and self.rank == 1:
            self.vector[np.abs(self.vector).argmax()] *= 1.01

    monkeypatch.setattr(Patient, "begin", spoilt)
    for job in train(three, 1, monkeypatch):
        found = job.samples()["digests"]
        assert found[:8].tolist() == alone[:8].tolist()
        assert (found[8:].reshape(-1, 4) != alone[8:].reshape(-1, 4)).any(axis=1).all()


@needs_jax
@pytest.mark.slow
def test_a_replica_learns(three: list[Patient]) -> None:
    replica, losses = three[0], []
    replica.warm_up()
    for step in range(200):
        replica.begin(step)
        assert replica.done()
        losses.append(replica.loss)
        replica.vector *= 3  # as if all three ranks had the same gradient
    assert losses[0] == pytest.approx(np.log(len(Text.shipped().alphabet)), rel=0.02)
    assert np.mean(losses[-20:]) < losses[0] - 0.5


@needs_jax
@pytest.mark.slow
def test_an_accelerator_that_ends_is_told() -> None:
    accelerator = Accelerator(SETTINGS, 0)
    try:
        os.kill(accelerator.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="the accelerator ended with code -9"):
            accelerator.warm_up()
        with pytest.raises(RuntimeError, match="the accelerator ended with code -9"):
            accelerator.begin(0)
    finally:
        accelerator.close()


def test_batches_are_of_the_text_and_differ_by_step_and_rank() -> None:
    text, settings = Text.shipped(), Settings.of(SMALL, 2, seed=7)
    whole = text.tokens.tobytes()
    batches = [batch_of(text, settings, step, rank) for step in range(3) for rank in range(2)]
    assert all(row.tobytes() in whole for batch in batches for row in batch)
    assert len({batch.tobytes() for batch in batches}) == 6
    assert batches[3].tobytes() == batch_of(text, settings, 1, 1).tobytes()


def test_where_jax_is_missing_the_mend_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrclab.hosts.training.model.find_spec", lambda name: None)
    with pytest.raises(MachineError, match=r"needs Python's 'jax': pip install 'mrclab\[training\]'"):
        require_jax()


def test_a_run_without_jax_ends_with_3_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mrclab.hosts.training.model.find_spec", lambda name: None)
    for target in ("sim", "ebpf"):
        words = ["run", "training", "--target", target, "--out", str(tmp_path / "out")]
        assert main(words) == 3
        assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
