"""PyTorch's DistributedDataParallel over the fabric: a communication hook.

PyTorch is no dependency of mrclab: only a program that has it imports this module. docs/training.md has a
complete program.
"""
# Not `from __future__ import annotations`: PyTorch compares the hook's annotations with its own types.

from concurrent.futures import Future

import torch
import torch.distributed

from mrclab.hosts.collectives.group import Group


def all_reduce_hook(group: Group, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients over all ranks, for ``DistributedDataParallel.register_comm_hook``.

    Gradients must be on the CPU and of a type that NumPy has (not bfloat16). As PyTorch's own hook does,
    divide first and then sum. Return a future of the bucket's tensor, which fails with GroupError.
    """
    gradients = bucket.buffer()
    gradients.div_(group.size)
    averaged = torch.futures.Future()

    def summed(done: Future[None]) -> None:
        error = done.exception()
        if error is None:
            averaged.set_result(gradients)
        else:
            averaged.set_exception(error)

    group.all_reduce(gradients.numpy()).add_done_callback(summed)
    return averaged
