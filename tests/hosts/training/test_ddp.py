"""The hook for PyTorch's DistributedDataParallel, with a group whose sums are made here."""

import inspect
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")


class Pair:
    """Two ranks, the other one of which has the gradients 10, 20, 30."""

    size = 2

    def __init__(self) -> None:
        self.under_way: list[tuple[np.ndarray, Future[None]]] = []

    def all_reduce(self, values: np.ndarray) -> Future[None]:
        self.under_way.append((values, Future()))
        return self.under_way[-1][1]


def called(pair: Pair) -> tuple[Any, Any]:
    from mrclab.hosts.training.ddp import all_reduce_hook

    gradients = torch.tensor([1.0, 2.0, 3.0])
    hook: Any = all_reduce_hook
    return gradients, hook(pair, SimpleNamespace(buffer=lambda: gradients))


def test_gradients_are_averaged_in_place_once_the_sum_is_there() -> None:
    pair = Pair()
    gradients, future = called(pair)
    assert not future.done()
    ((values, done),) = pair.under_way
    values += np.array([10.0, 20.0, 30.0], np.float32) / 2
    done.set_result(None)
    assert future.wait() is gradients
    assert gradients.tolist() == [5.5, 11.0, 16.5]


def test_a_sum_that_fails_is_told_to_pytorch() -> None:
    pair = Pair()
    _, future = called(pair)
    pair.under_way[0][1].set_exception(RuntimeError("gave up on rank 1"))
    with pytest.raises(RuntimeError, match="gave up on rank 1"):
        future.wait()


def test_pytorch_takes_the_hook() -> None:
    """It compares the annotations with its own types."""
    from mrclab.hosts.training.ddp import all_reduce_hook

    signature = inspect.signature(all_reduce_hook)
    assert signature.parameters["bucket"].annotation is torch.distributed.GradBucket
    assert signature.return_annotation == torch.futures.Future[torch.Tensor]
