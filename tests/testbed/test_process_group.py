"""The backend of torch.distributed, with groups whose sums are made here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

RANKS = 3


class Ring:
    """Sums that complete once all ranks have brought theirs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rounds: dict[int, list[tuple[np.ndarray, Future[None]]]] = {}

    def bring(self, number: int, values: np.ndarray) -> Future[None]:
        done: Future[None] = Future()
        with self._lock:
            brought = self._rounds.setdefault(number, [])
            brought.append((values, done))
            whole = len(brought) == RANKS
        if whole:
            total = np.sum([each for each, _ in brought], axis=0, dtype=values.dtype)
            for each, future in brought:
                each[:] = total
                future.set_result(None)
        return done


class Rank:
    """A stand-in for `mrclab.hosts.collectives.group.Group`."""

    size = RANKS

    def __init__(self, ring: Ring, rank: int) -> None:
        self.rank, self._ring, self._rounds = rank, ring, 0

    def all_reduce(self, values: np.ndarray) -> Future[None]:
        assert values.ndim == 1
        assert values.flags.c_contiguous
        self._rounds += 1
        return self._ring.bring(self._rounds, values)


def everywhere(work: Callable[[Any, int], Any]) -> list[Any]:
    """Run the same on all ranks and return the results, by rank."""
    from mrclab.testbed.programs.process_group import ProcessGroup

    ring = Ring()
    results: list[Any] = [None] * RANKS
    errors: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            results[rank] = work(ProcessGroup(Rank(ring, rank)), rank)  # type: ignore[arg-type]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not errors, errors
    return results


def _opts(name: str = "SUM", root: int = 0) -> Any:
    return SimpleNamespace(reduceOp=getattr(torch.distributed.ReduceOp, name), rootRank=root)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("name", "expected"), [("SUM", [6, 12]), ("MAX", [3, 6]), ("MIN", [1, 2]), ("PRODUCT", [6, 48])]
)
def test_reductions(dtype: str, name: str, expected: list[int]) -> None:
    def work(group: Any, rank: int) -> list[float]:
        tensor = torch.tensor([rank + 1, 2 * (rank + 1)], dtype=getattr(torch, dtype))
        group.allreduce([tensor], _opts(name)).wait()
        return [float(x) for x in tensor]

    assert everywhere(work) == [[float(x) for x in expected]] * RANKS


def test_broadcast_moves_bits_and_not_numbers() -> None:
    bits = [0x7FC00001, 0x80000000, 0xFF800000, 1]  # a NaN with a payload, -0, -infinity, a subnormal

    def work(group: Any, rank: int) -> list[int]:
        tensor = torch.tensor(bits if rank == 1 else [5, 6, 7, 8], dtype=torch.int64).to(torch.uint32)
        numbers = tensor.view(torch.float32).reshape(2, 2).t()
        group.broadcast([numbers], _opts(root=1)).wait()
        return [int(x) for x in numbers.t().reshape(-1).view(torch.uint32)]

    assert everywhere(work) == [bits] * RANKS


def test_gathers_scatters_and_exchanges() -> None:
    def work(group: Any, rank: int) -> tuple[Any, ...]:
        mine = torch.arange(2) + 10 * rank
        places = [torch.zeros(2, dtype=torch.int64) for _ in range(RANKS)]
        group.allgather([places], [mine]).wait()
        flat = torch.zeros(2 * RANKS, dtype=torch.int64)
        group._allgather_base(flat, mine).wait()
        share = torch.zeros(2)
        group._reduce_scatter_base(share, torch.arange(2.0 * RANKS), _opts()).wait()
        swapped = torch.zeros(RANKS, dtype=torch.int64)
        group.alltoall_base(swapped, torch.arange(RANKS) + 10 * rank, [], []).wait()
        uneven = torch.zeros(sum(range(1, RANKS + 1)), dtype=torch.int64)
        sent = torch.full((RANKS * (rank + 1),), rank)
        group.alltoall_base(uneven, sent, [n + 1 for n in range(RANKS)], [rank + 1] * RANKS).wait()
        group.barrier().wait()
        return [p.tolist() for p in places], flat.tolist(), share.tolist(), swapped.tolist(), uneven.tolist()

    for rank, (places, flat, share, swapped, uneven) in enumerate(everywhere(work)):
        assert places == [[0, 1], [10, 11], [20, 21]]
        assert flat == [0, 1, 10, 11, 20, 21]
        assert share == [RANKS * 2.0 * rank, RANKS * (2.0 * rank + 1)]
        assert swapped == [rank, 10 + rank, 20 + rank]
        assert uneven == [0, 1, 1, 2, 2, 2]


def test_what_a_ring_cannot_do_is_refused_by_name() -> None:
    def work(group: Any, _rank: int) -> str:
        with pytest.raises(NotImplementedError, match="no send"):
            group.send([torch.zeros(1)], 1, 0)
        return str(group.getBackendName())

    assert everywhere(work) == ["mrclab"] * RANKS
