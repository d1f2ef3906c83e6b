"""A DistributedDataParallel training over the backend mrclab, and the same training by one process.

    torch_training.py STEPS [pause]     prints a hash of the parameters of each training

With ``pause``, rank 0 prints ``half`` in the middle and waits for a line, so that a test can cause a fault.
From the first step on, each parameter is in a separate bucket. So a single process can add gradients in the
same order as the ranks.
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import mrclab.testbed.programs.process_group
from mrclab.hosts.collectives.collective_operations import ring_sum

WIDTH = 96
BATCH = 16


def network() -> torch.nn.Module:
    """Make the same network every time."""
    torch.manual_seed(1)
    layers = [torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Tanh(), torch.nn.Linear(2 * WIDTH, WIDTH)]
    return torch.nn.Sequential(*layers)


def loss_of(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    """Return the loss of a rank's batch in a step."""
    batch = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1000 * step + rank))
    return torch.nn.functional.mse_loss(model(batch), batch.roll(1, 1))


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of a model."""
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def hash_of(model: torch.nn.Module) -> str:
    """Return a hash of the parameters' bits."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()


def together(steps: int, pause: bool) -> str:
    """Train as one of several ranks, and return the hash of the parameters."""
    rank = dist.get_rank()
    dist._DEFAULT_FIRST_BUCKET_BYTES = 1
    # Without find_unused_parameters, PyTorch makes other buckets after the first step.
    model = DistributedDataParallel(network(), bucket_cap_mb=1e-6, find_unused_parameters=True)
    optimizer = optimizer_of(model)
    for step in range(steps):
        if pause and rank == 0 and step == steps // 2:
            print("half", flush=True)
            sys.stdin.readline()
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        optimizer.step()
    return hash_of(model)


def alone(steps: int, ranks: int) -> str:
    """Train in one process, which computes the parts of all ranks. Return the hash of the parameters."""
    model = network()
    optimizer = optimizer_of(model)
    for step in range(steps):
        parts: list[list[np.ndarray]] = []
        for rank in range(ranks):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            parts.append([p.grad.div(ranks).reshape(-1).numpy().copy() for p in model.parameters()])
        for parameter, each in zip(model.parameters(), zip(*parts, strict=True), strict=True):
            parameter.grad = torch.from_numpy(ring_sum(each)).view_as(parameter)
        optimizer.step()
    return hash_of(model)


def main() -> None:
    """Train as a rank. Rank 0 also trains alone, and prints the hashes of both trainings."""
    torch.set_num_threads(1)
    steps, pause = int(sys.argv[1]), sys.argv[2:] == ["pause"]
    dist.init_process_group(mrclab.testbed.programs.process_group.BACKEND)
    found = together(steps, pause)
    hashes: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(hashes, found)
    if dist.get_rank() == 0:
        assert len(set(hashes)) == 1, hashes
        print(f"together {found}\nalone {alone(steps, dist.get_world_size())}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
