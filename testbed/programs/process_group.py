"""``torch.distributed`` over the fabric: a backend for programs that ``mrclab exec --all`` starts.

    import mrclab.testbed.programs.process_group
    torch.distributed.init_process_group("mrclab")

Collectives are sums of a ring (`mrclab.hosts.collectives.group`): a sum of integers or floating-point numbers
is one all-reduce, with additions in a fixed order. All else moves bytes as a sum with zeros, bit for bit,
and reduces them here in the order of ranks. So an all-gather sends some twice of its least, and a
program must issue its collectives in the same order on all ranks, as with other backends. PyTorch is no
dependency of mrclab: only a program that has it imports this module.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import reduce
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from mrclab.hosts.collectives.group import Group
from mrclab.linux.errors import InputError
from mrclab.testbed.network import FabricNetwork

BACKEND = "mrclab"
HOST_VARIABLE = "MRCLAB_HOST"
SUMMED = (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.int8, torch.int16)
"""Types that are summed on the way; others are gathered and reduced here."""
OPERATIONS: dict[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.AVG: torch.add,
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}


class ProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """The ranks of a program; its collectives take tensors on the CPU."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.rank, group.size)
        self._group = group

    def getBackendName(self) -> str:  # noqa: N802 - PyTorch's name
        """Return the name of the backend."""
        return BACKEND

    # Collectives

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        """Reduce a tensor over all ranks, in place."""
        (tensor,) = tensors
        operation = dist.ReduceOp.SUM if opts is None else _operation(opts)

        def keep(reduced: torch.Tensor) -> None:
            tensor.copy_(reduced.view_as(tensor))

        return self._reduce(tensor, operation, keep, list(tensors))

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        """Reduce several tensors of one type over all ranks, in place."""
        operation = dist.ReduceOp.SUM if opts is None else _operation(opts)
        together = torch.cat([tensor.reshape(-1) for tensor in tensors])

        def keep(reduced: torch.Tensor) -> None:
            for tensor, part in zip(tensors, reduced.split([t.numel() for t in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))

        return self._reduce(together, operation, keep, list(tensors))

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any) -> Any:
        """Copy the root's tensor to all ranks."""
        (tensor,) = tensors
        data = _bytes(tensor) if opts.rootRank == self.rank() else np.zeros(_size(tensor), np.uint8)
        return self._send(data, lambda: _fill(tensor, data), list(tensors))

    def allgather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Any:
        """Copy each rank's tensor to all ranks."""
        (tensor,), (places,) = inputs, outputs

        def keep(parts: np.ndarray) -> None:
            for place, part in zip(places, parts, strict=True):
                _fill(place, part)

        return self._gather(tensor, keep, list(places))

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        return self._gather(tensor, lambda parts: _fill(output, parts.reshape(-1)), output)

    def reduce_scatter(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any
    ) -> Any:
        """Reduce one tensor for each rank over all ranks, and keep our own."""
        (output,), (tensors,) = outputs, inputs
        return self._reduce_scatter_base(output, torch.cat([t.reshape(-1) for t in tensors]), opts)

    def _reduce_scatter_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> Any:
        def keep(reduced: torch.Tensor) -> None:
            output.copy_(reduced.reshape(self.size(), -1)[self.rank()].view_as(output))

        return self._reduce(tensor.clone(), _operation(opts), keep, output)

    def alltoall_base(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: Any = None,
    ) -> Any:
        """Copy a part of each rank's tensor to each rank. Sizes are of the first dimension; none: equal."""
        if input_sizes or output_sizes:
            return self.alltoall(
                list(output.split(list(output_sizes or [len(output) // self.size()] * self.size()))),
                list(tensor.split(list(input_sizes or [len(tensor) // self.size()] * self.size()))),
            )

        def keep(parts: np.ndarray) -> None:
            _fill(output, parts.reshape(self.size(), self.size(), -1)[:, self.rank()].reshape(-1))

        return self._gather(tensor, keep, output)

    def alltoall(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Any:
        """Copy one tensor to each rank; sizes may differ. All wait for the largest."""
        sizes = torch.zeros(self.size(), dtype=torch.int64)
        sizes[self.rank()] = sum(_size(tensor) for tensor in inputs)
        self.allreduce([sizes]).wait()
        mine = np.zeros(int(sizes.max()) + 8 * self.size(), np.uint8)
        heads = mine[: 8 * self.size()].view(np.int64)
        heads[:] = [_size(tensor) for tensor in inputs]
        mine[8 * self.size() : 8 * self.size() + int(heads.sum())] = np.concatenate(
            [_bytes(tensor) for tensor in inputs]
        )

        def keep(parts: np.ndarray) -> None:
            for output, part in zip(outputs, parts, strict=True):
                theirs = part[: 8 * self.size()].view(np.int64)
                at = 8 * self.size() + int(theirs[: self.rank()].sum())
                _fill(output, part[at : at + int(theirs[self.rank()])])

        return self._gather(torch.from_numpy(mine), keep, list(outputs))

    def barrier(self, opts: Any = None) -> Any:
        """Wait for all ranks."""
        return self._send(np.zeros(1, np.uint8), lambda: None, [])

    def send(self, tensors: Sequence[torch.Tensor], dst: int, tag: int) -> Any:
        """Raise NotImplementedError: a group has queue pairs to its neighbours only."""
        raise NotImplementedError("the backend mrclab has no send: use a collective")

    def recv(self, tensors: Sequence[torch.Tensor], src: int, tag: int) -> Any:
        """Raise NotImplementedError, as `send` does."""
        raise NotImplementedError("the backend mrclab has no recv: use a collective")

    def shutdown(self) -> None:
        """Close the NIC."""
        self._group.close()

    # How they go

    def _reduce(
        self, tensor: torch.Tensor, operation: Any, keep: Callable[[torch.Tensor], None], result: Any
    ) -> Any:
        summed = operation in (dist.ReduceOp.SUM, dist.ReduceOp.AVG) and tensor.dtype in SUMMED
        if operation not in OPERATIONS:
            raise NotImplementedError(f"the backend mrclab has no {operation}")
        average = operation == dist.ReduceOp.AVG

        def divided(total: torch.Tensor) -> torch.Tensor:
            return total / self.size() if average else total

        if summed:
            flat = tensor.detach().contiguous().reshape(-1).clone()
            return self._send(flat.numpy(), lambda: keep(divided(flat)), result)

        def combine(parts: np.ndarray) -> None:
            each = [torch.from_numpy(part.copy()).view(tensor.dtype) for part in parts]
            keep(divided(reduce(OPERATIONS[operation], each)))

        return self._gather(tensor, combine, result)

    def _gather(self, tensor: torch.Tensor, keep: Callable[[np.ndarray], None], result: Any) -> Any:
        """Bring the bytes of all ranks here, as rows."""
        rows = np.zeros((self.size(), _size(tensor)), np.uint8)
        rows[self.rank()] = _bytes(tensor)
        return self._send(rows.reshape(-1), lambda: keep(rows), result)

    def _send(self, values: np.ndarray, then: Callable[[], None], result: Any) -> Any:
        """Sum an array over all ranks, then do the rest; return PyTorch's work."""
        future: Any = torch.futures.Future()

        def done(summed: Future[None]) -> None:
            try:
                summed.result()
                with torch.no_grad():
                    then()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        if len(values):
            self._group.all_reduce(values).add_done_callback(done)
        else:
            future.set_result(result)
        return torch._C._distributed_c10d._create_work_from_future(future)


def _operation(opts: Any) -> Any:
    operation = opts.reduceOp
    return operation.op if hasattr(operation, "op") else operation


def _size(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _bytes(tensor: torch.Tensor) -> np.ndarray:
    data: np.ndarray = tensor.detach().contiguous().clone().reshape(-1).view(torch.uint8).numpy()
    return data


def _fill(tensor: torch.Tensor, data: np.ndarray) -> None:
    tensor.copy_(torch.from_numpy(np.array(data)).view(tensor.dtype).view_as(tensor))


def make(store: Any, rank: int, size: int, timeout: timedelta) -> ProcessGroup:
    """Make this rank's process group. Raise InputError outside of ``mrclab exec``."""
    host = os.environ.get(HOST_VARIABLE)
    if host is None:
        raise InputError("the backend mrclab needs a host: mrclab exec --all -- python train.py")
    network = FabricNetwork.attached()
    seed = int.from_bytes(os.urandom(4))
    group = Group.open(
        *(network.fabric, network.names.host(host), host, rank, size, store), options=OPTIONS, seed=seed
    )
    return ProcessGroup(group)


OPTIONS = {"exponential_retries": 8}


if BACKEND not in dist.Backend.backend_list:
    dist.Backend.register_backend(BACKEND, make, devices=["cpu"])
