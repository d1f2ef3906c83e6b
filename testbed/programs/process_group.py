"""``torch.distributed`` over the fabric: a backend for programs that ``mrclab exec --all`` starts.

    import mrclab.testbed.programs.process_group
    torch.distributed.init_process_group("mrclab")

A sum of integers or floating-point numbers is one all-reduce of `mrclab.hosts.collectives.group`, a ring that
adds in a fixed order. In an all-to-all each rank sends a message to each other rank. All other collectives
first collect the bytes of all ranks. This is an all-reduce of an array in which each rank has its bytes in
one place, and zeros elsewhere. So an all-gather sends about twice the necessary data. Then each rank reduces
the collected bytes in the order of ranks. All ranks must call collectives in the same order, as with other
backends. Messages between two ranks need no such order
(`mrclab.hosts.collectives.point_to_point`).

mrclab does not depend on PyTorch: only programs that use PyTorch import this module. It supports both ways to
register a backend: that of PyTorch 1.13 (Debian 12) and that of PyTorch 2.
"""

import atexit
import inspect
import itertools
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import suppress
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
TRANSPORT_VARIABLE = "MRCLAB_TRANSPORT"
OPTIONS = {"mrc": {"exponential_retries": 8}}
"""The options of each transport. With these options, a dead peer is reported after some seconds."""
LEAVE = timedelta(seconds=5)
ALL_TO_ALL_TAG = -1
"""The tag of an all-to-all's messages. Programs use tags from 0 on."""
WORKS_KEPT = 256
"""Number of newest work objects of a group that are kept, because PyTorch's C++ code does not keep them."""
SUMMED = (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.int8, torch.int16)
"""Types that the ring can sum. Tensors of other types are gathered and reduced locally."""
OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


class ProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """The ranks of a program as a PyTorch process group. Its collectives take tensors on the CPU."""

    def __init__(self, group: Group, store: Any, timeout: timedelta) -> None:
        super().__init__(group.rank, group.size)
        self._group = group
        self._store = store
        self._timeout = timeout
        self._works: deque[Work] = deque(maxlen=WORKS_KEPT)
        self._names = ("", "")
        atexit.register(self.shutdown)  # PyTorch 1 does not call `shutdown`

    def getBackendName(self) -> str:  # noqa: N802 - PyTorch's name
        """Return the name of the backend."""
        return BACKEND

    # PyTorch 2 stores a group's names in its C++ backend. This group has no such backend, so this class
    # stores the names.

    @property
    def group_name(self) -> str:
        """The name of the group. Only PyTorch 2 uses it."""
        return self._names[0]

    def _set_group_name(self, name: str) -> None:
        self._names = (name, self._names[1])

    @property
    def group_desc(self) -> str:
        """The description of the group. Only PyTorch 2 uses it."""
        return self._names[1]

    def _set_group_desc(self, description: str) -> None:
        self._names = (self._names[0], description)

    # Collectives

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        """Reduce a tensor over all ranks, in place."""
        (tensor,) = tensors
        operation = "SUM" if opts is None else _operation(opts)

        def keep(reduced: torch.Tensor) -> None:
            tensor.copy_(reduced.view_as(tensor))

        return self._reduce(tensor, operation, keep, list(tensors))

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        """Reduce several tensors of one type over all ranks, in place."""
        operation = "SUM" if opts is None else _operation(opts)
        together = torch.cat([tensor.reshape(-1) for tensor in tensors])

        def keep(reduced: torch.Tensor) -> None:
            for tensor, part in zip(tensors, reduced.split([t.numel() for t in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))

        return self._reduce(together, operation, keep, list(tensors))

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> Any:
        """Reduce a tensor over all ranks, in place at the root."""
        (tensor,) = tensors

        def keep(reduced: torch.Tensor) -> None:
            if opts.rootRank == self.rank():
                tensor.copy_(reduced.view_as(tensor))

        return self._reduce(tensor, _operation(opts), keep, list(tensors))

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any) -> Any:
        """Copy the root's tensor to all ranks."""
        (tensor,) = tensors
        data = _bytes(tensor) if opts.rootRank == self.rank() else np.zeros(_size(tensor), np.uint8)
        return self._send(data, lambda: _fill(tensor, data), list(tensors))

    def allgather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Any:
        """Copy each rank's tensor to all ranks. The tensors of the ranks may have different sizes."""
        (tensor,), (places,) = inputs, outputs
        sizes = [_size(place) for place in places]
        if _size(tensor) != sizes[self.rank()]:
            raise ValueError(f"the output for rank {self.rank()} has another size than the rank's tensor")
        mine = np.zeros(max(sizes), np.uint8)
        mine[: _size(tensor)] = _bytes(tensor)

        def keep(parts: np.ndarray) -> None:
            for place, part, size in zip(places, parts, sizes, strict=True):
                _fill(place, part[:size])

        return self._gather(torch.from_numpy(mine), keep, list(places))

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        return self._gather(tensor, lambda parts: _fill(output, parts.reshape(-1)), output)

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Any:
        """Copy all tensors of each rank to all ranks. ``outputs`` has a list of tensors for each rank."""
        mine = torch.from_numpy(np.concatenate([_bytes(tensor) for tensor in inputs]))

        def keep(parts: np.ndarray) -> None:
            for places, part in zip(outputs, parts, strict=True):
                ends = np.cumsum([_size(place) for place in places])[:-1]
                for place, piece in zip(places, np.split(part, ends), strict=True):
                    _fill(place, piece)

        return self._gather(mine, keep, list(outputs))

    def allgather_into_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Any:
        """Copy all tensors of each rank to all ranks. Output n has input n of every rank."""
        return [self._allgather_base(*pair) for pair in zip(outputs, inputs, strict=True)][-1]

    def gather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any
    ) -> Any:
        """Copy each rank's tensor to the root."""
        (tensor,) = inputs
        places = outputs[0] if opts.rootRank == self.rank() else [torch.empty_like(tensor)] * self.size()
        return self.allgather([places], inputs)

    def scatter(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any
    ) -> Any:
        """Copy one of the root's tensors to each rank."""
        (output,) = outputs
        size = _size(output)
        rows = np.zeros((self.size(), size), np.uint8)
        if opts.rootRank == self.rank():
            rows[:] = [_bytes(tensor) for tensor in inputs[0]]
        return self._send(rows.reshape(-1), lambda: _fill(output, rows[self.rank()]), list(outputs))

    def reduce_scatter(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any
    ) -> Any:
        """Reduce a list of tensors, one for each rank, over all ranks; keep the tensor of this rank."""
        (output,), (tensors,) = outputs, inputs
        together = torch.cat([tensor.reshape(-1) for tensor in tensors])

        def keep(reduced: torch.Tensor) -> None:
            parts = reduced.split([tensor.numel() for tensor in tensors])
            output.copy_(parts[self.rank()].view_as(output))

        return self._reduce(together, _operation(opts), keep, list(outputs))

    def _reduce_scatter_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> Any:
        def keep(reduced: torch.Tensor) -> None:
            output.copy_(reduced.reshape(self.size(), -1)[self.rank()].view_as(output))

        return self._reduce(tensor, _operation(opts), keep, output)

    def reduce_scatter_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any
    ) -> Any:
        """Reduce several tensors; keep this rank's part of each tensor."""
        return [self._reduce_scatter_base(*pair, opts) for pair in zip(outputs, inputs, strict=True)][-1]

    def alltoall_base(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: Any = None,
    ) -> Any:
        """Copy a part of each rank's tensor to each rank. Sizes count rows; by default, parts are equal."""
        parts = [
            list(whole.split(list(sizes or [len(whole) // self.size()] * self.size())))
            for whole, sizes in ((output, output_sizes), (tensor, input_sizes))
        ]
        return self.alltoall(*parts)

    def alltoall(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Any:
        """Copy a tensor to each rank. Sizes may differ."""
        rank, size = self.rank(), self.size()
        data = [np.empty(_size(output), np.uint8) for output in outputs]
        data[rank][:] = _bytes(inputs[rank])
        others = [(rank + distance) % size for distance in range(1, size)]
        messages: list[Future[Any]] = [self._group.receive(n, data[n], ALL_TO_ALL_TAG) for n in others]
        messages += [self._group.send(n, _bytes(inputs[n]), ALL_TO_ALL_TAG) for n in others]

        def keep() -> None:
            for output, part in zip(outputs, data, strict=True):
                _fill(output, part)

        return self._work(_all_of(messages), keep, list(outputs))

    def barrier(self, opts: Any = None) -> Any:
        """Wait for all ranks."""
        return self._send(np.zeros(1, np.uint8), lambda: None, [])

    # In PyTorch 2.13, the same methods have these names.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    # Messages between two ranks

    def send(self, tensors: Sequence[torch.Tensor], dst: int, tag: int) -> Any:
        """Send a tensor to a rank. The work is complete when the data is in that rank's memory."""
        (tensor,) = tensors
        return self._work(self._group.send(dst, _bytes(tensor), tag), lambda: None, list(tensors))

    def recv(self, tensors: Sequence[torch.Tensor], src: int, tag: int) -> Any:
        """Receive the next tensor with this tag from a rank into the given tensor of the same size."""
        return self._receive(tensors, src, tag)

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int) -> Any:
        """Receive the next tensor with this tag from any rank."""
        return self._receive(tensors, None, tag)

    def _receive(self, tensors: Sequence[torch.Tensor], src: int | None, tag: int) -> Any:
        (tensor,) = tensors
        data = np.empty(_size(tensor), np.uint8)
        received = self._group.receive(src, data, tag)
        return self._work(received, lambda: _fill(tensor, data), list(tensors))

    def shutdown(self) -> None:
        """Close the NIC after all ranks have called this: another rank may still need an answer from the NIC.

        Wait at most `LEAVE` for the other ranks. Do not wait if the program ends with an exception.
        """
        atexit.unregister(self.shutdown)
        with suppress(RuntimeError):  # the other ranks and the store may have ended
            self._store.set(f"mrclab/left/{self.rank()}", "")
            if not hasattr(sys, "last_value"):
                self._store.wait([f"mrclab/left/{rank}" for rank in range(self.size())], LEAVE)
        self._group.close()

    # How collectives are carried out

    def _reduce(
        self, tensor: torch.Tensor, operation: str, keep: Callable[[torch.Tensor], None], result: Any
    ) -> Any:
        summed = operation in ("SUM", "AVG") and tensor.dtype in SUMMED
        if operation not in OPERATIONS:
            raise NotImplementedError(f"the backend mrclab has no {operation}")
        average = operation == "AVG"
        whole = average and not (tensor.is_floating_point() or tensor.is_complex())
        if average and not whole:  # PyTorch divides before the sum, so that a float16 sum does not overflow
            tensor = tensor.detach() / self.size()

        def divided(total: torch.Tensor) -> torch.Tensor:
            return torch.div(total, self.size(), rounding_mode="trunc") if whole else total

        if summed:
            flat = tensor.detach().contiguous().reshape(-1).clone()
            return self._send(flat.numpy(), lambda: keep(divided(flat)), result)

        def combine(parts: np.ndarray) -> None:
            each = [torch.from_numpy(part.copy()).view(tensor.dtype) for part in parts]
            keep(divided(reduce(OPERATIONS[operation], each)))

        return self._gather(tensor, combine, result)

    def _gather(self, tensor: torch.Tensor, keep: Callable[[np.ndarray], None], result: Any) -> Any:
        """Collect the bytes of all ranks; call ``keep`` with an array that has a row for each rank."""
        rows = np.zeros((self.size(), _size(tensor)), np.uint8)
        rows[self.rank()] = _bytes(tensor)
        return self._send(rows.reshape(-1), lambda: keep(rows), result)

    def _send(self, values: np.ndarray, then: Callable[[], None], result: Any) -> Any:
        """Sum an array over all ranks, then call ``then``. Return PyTorch's work object with the result."""
        # An empty array is also passed to the group, so that operations complete in order.
        return self._work(self._group.all_reduce(values), then if len(values) else lambda: None, result)

    def _work(self, done: Future[Any], then: Callable[[], None], result: Any) -> Any:
        work = Work(done, then, result, self._timeout)
        self._works.append(work)
        return work


class Work(torch._C._distributed_c10d.Work):  # type: ignore[misc]
    """PyTorch's work object for a future of the group. ``then`` is called when the future is done.

    PyTorch's own work object for a future ignores the future's error, so a program would use wrong data.
    """

    def __init__(self, done: Future[Any], then: Callable[[], None], result: Any, timeout: timedelta) -> None:
        super().__init__()
        self._done = done
        self._then = then
        self._result = result
        self._timeout = timeout
        self._finished: Future[None] = Future()
        begin: Any = torch.futures.Future()
        # If a function of `then` raises an exception, the future has an error for PyTorch's C++ code, too.
        # `set_exception` would only raise the error in Python.
        self._future = begin.then(self._finish)
        done.add_done_callback(begin.set_result)

    def _finish(self, _: Any) -> Any:
        try:
            self._done.result()
            with torch.no_grad():
                self._then()
        except Exception as error:
            self._finished.set_exception(error)
            raise
        self._finished.set_result(None)
        return self._result

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the operation is complete. Raise its error, or RuntimeError after the timeout.

        The default is the timeout of the group, also for a timeout of 0, as in PyTorch.
        """
        limit = timeout or self._timeout
        if not futures.wait([self._finished], limit.total_seconds()).done:
            raise RuntimeError(
                f"timed out: the other ranks did not take part within {limit.total_seconds():g} s"
            )
        self._finished.result()
        return True

    def is_completed(self) -> bool:
        """Return True if the operation is complete or has failed."""
        return self._finished.done()

    def is_success(self) -> bool:
        """Return True if the operation is complete and has not failed."""
        return self._finished.done() and self._finished.exception() is None

    def exception(self) -> BaseException | None:
        """Return the error of an operation that has failed."""
        return self._finished.exception() if self._finished.done() else None

    def result(self) -> Any:
        """Return the tensors of the operation."""
        return self._result

    def get_future(self) -> Any:
        """Return PyTorch's future for the tensors."""
        return self._future

    def source_rank(self) -> int:
        """Return the rank from which a receive got its tensor."""
        return int(self._done.result())

    _source_rank = source_rank


def _all_of(parts: Sequence[Future[Any]]) -> Future[None]:
    """Return a future that is done when all parts are done. It fails if a part has failed."""
    whole: Future[None] = Future()
    left = itertools.count(len(parts) - 1, -1)

    def finish(_: Future[Any]) -> None:
        if next(left) == 0:  # the last part; several threads may call this
            errors = [error for part in parts if (error := part.exception()) is not None]
            if errors:
                whole.set_exception(errors[0])
            else:
                whole.set_result(None)

    for part in parts:
        part.add_done_callback(finish)
    if not parts:
        whole.set_result(None)
    return whole


def _operation(opts: Any) -> str:
    operation = opts.reduceOp
    return str(getattr(operation, "op", operation).name)  # some versions of PyTorch wrap the enumeration


def _size(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _bytes(tensor: torch.Tensor) -> np.ndarray:
    data: np.ndarray = tensor.detach().contiguous().clone().reshape(-1).view(torch.uint8).numpy()
    return data


def _fill(tensor: torch.Tensor, data: np.ndarray) -> None:
    if tensor.numel():  # PyTorch does not view an empty array as another type
        tensor.copy_(torch.from_numpy(np.array(data)).view(tensor.dtype).view_as(tensor))


def make(store: Any, rank: int, size: int, timeout: timedelta) -> ProcessGroup:
    """Make this rank's process group. Raise InputError if the program was not started by ``mrclab exec``."""
    host = os.environ.get(HOST_VARIABLE)
    if host is None:
        raise InputError("the backend mrclab needs a host: mrclab exec --all -- python train.py")
    transport = os.environ.get(TRANSPORT_VARIABLE, "mrc")
    network = FabricNetwork.attached()
    seed = int.from_bytes(os.urandom(4))
    place = (network.fabric, network.names.host(host), host, rank, size, store)
    options = OPTIONS.get(transport, {})
    group = Group.open(*place, transport=transport, options=options, seed=seed)
    return ProcessGroup(group, store, timeout)


def register() -> None:
    """Register the backend in PyTorch, unless it is registered already."""
    if hasattr(dist.Backend, BACKEND.upper()):
        return
    if "devices" in inspect.signature(dist.Backend.register_backend).parameters:
        dist.Backend.register_backend(BACKEND, make, devices=["cpu"])
    else:  # before PyTorch 2.0 a backend had no devices
        dist.Backend.register_backend(BACKEND, make)


register()
