"""Check all collectives and messages of torch.distributed over the backend mrclab, on each of four ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import mrclab.testbed.programs.process_group

RANKS = 4
LARGE = 1_100_000  # elements of a message that exceeds the group's memory, so that it is sent in pieces


def equal(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Compare bits: equal numbers may have different bits (0 and -0), and a NaN is not equal to itself."""
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    bits = [t.contiguous().reshape(-1).view(torch.uint8) for t in (found, wanted)]
    assert torch.equal(*bits), (found, wanted)


def reductions(rank: int) -> None:
    """Check every type and reduction, with the result at all ranks or at one rank."""
    operation = dist.ReduceOp
    numbers = {
        operation.SUM: [10, 20],
        operation.MAX: [4, 8],
        operation.MIN: [1, 2],
        operation.PRODUCT: [24, 384],
    }
    for dtype in (torch.float32, torch.float64, torch.int64, torch.int32, torch.bfloat16, torch.float16):
        for name, wanted in numbers.items():
            tensor = torch.tensor([rank + 1, 2 * (rank + 1)], dtype=dtype)
            dist.all_reduce(tensor, name)
            equal(tensor, torch.tensor(wanted, dtype=dtype))
    for name, bits in ((operation.BOR, 15), (operation.BAND, 0), (operation.BXOR, 15)):
        flags = torch.tensor([1 << rank])
        dist.all_reduce(flags, name)
        equal(flags, torch.tensor([bits]))
    tensor = torch.full((3,), float(rank))
    dist.reduce(tensor, 2)
    equal(tensor, torch.full((3,), 6.0 if rank == 2 else float(rank)))
    average = torch.full((2,), float(rank))
    dist.all_reduce(average, operation.AVG)
    equal(average, torch.full((2,), 1.5))
    for dtype, numbers_of in ((torch.int64, [2**53 + 1, -7]), (torch.float16, [30_000.0, 1.0])):
        average = torch.tensor(numbers_of, dtype=dtype)  # the same on all ranks, so the average is this, too
        dist.all_reduce(average, operation.AVG)
        equal(average, torch.tensor(numbers_of, dtype=dtype))
    truths = torch.tensor([rank == 3, False])
    dist.all_reduce(truths, operation.MAX)
    equal(truths, torch.tensor([True, False]))
    large = torch.arange(LARGE, dtype=torch.float32) * (rank + 1)
    work = dist.all_reduce(large, async_op=True)
    work.wait()
    equal(large[: 1 << 20], torch.arange(1 << 20, dtype=torch.float32) * 10)


def copies(rank: int) -> None:
    """Check the operations that copy bytes: from one rank to all, from all to one, and from each to each."""
    bits = torch.tensor([0x7FC00001, -0x80000000, -0x800000, 1], dtype=torch.int32)
    numbers = (
        (bits if rank == 1 else torch.arange(4, dtype=torch.int32)).view(torch.float32).reshape(2, 2).t()
    )
    dist.broadcast(numbers, 1)  # NaN, -0, -infinity and a subnormal in a tensor that is not contiguous
    equal(numbers, bits.view(torch.float32).reshape(2, 2).t())
    mine = torch.arange(2) + 10 * rank
    all_of_it = torch.cat([torch.arange(2) + 10 * other for other in range(RANKS)])
    places = [torch.zeros(2, dtype=torch.int64) for _ in range(RANKS)]
    dist.all_gather(places, mine)
    equal(torch.cat(places), all_of_it)
    dist.gather(mine, places := [torch.zeros_like(mine) for _ in range(RANKS)] if rank == 3 else None, 3)
    if places is not None:
        equal(torch.cat(places), all_of_it)
    share = torch.zeros(2, dtype=torch.int64)
    dist.scatter(share, list(all_of_it.split(2)) if rank == 0 else None, 0)
    equal(share, mine)
    total = torch.zeros(2)
    dist.reduce_scatter(total, list(torch.arange(2.0 * RANKS).split(2)))
    equal(total, torch.tensor([2.0 * rank, 2.0 * rank + 1]) * RANKS)
    flat = torch.zeros(2 * RANKS, dtype=torch.int64)
    if hasattr(dist, "all_gather_into_tensor"):
        dist.all_gather_into_tensor(flat, mine)
        equal(flat, all_of_it)
        dist.reduce_scatter_tensor(total, torch.arange(2.0 * RANKS))
        equal(total, torch.tensor([2.0 * rank, 2.0 * rank + 1]) * RANKS)
    swapped = torch.zeros(RANKS, dtype=torch.int64)
    dist.all_to_all_single(swapped, torch.arange(RANKS) + 10 * rank)
    equal(swapped, torch.arange(RANKS) * 10 + rank)
    swapped.zero_()
    sizes = None if rank == 0 else [1] * RANKS  # the same sizes, which a rank may leave out
    dist.all_to_all_single(swapped, torch.arange(RANKS) + 10 * rank, sizes, sizes)
    equal(swapped, torch.arange(RANKS) * 10 + rank)
    uneven = torch.zeros(sum(range(1, RANKS + 1)), dtype=torch.int64)
    sent = torch.full((RANKS * (rank + 1),), rank)
    dist.all_to_all_single(uneven, sent, [n + 1 for n in range(RANKS)], [rank + 1] * RANKS)
    equal(uneven, torch.cat([torch.full((n + 1,), n) for n in range(RANKS)]))
    different = [torch.zeros(n) for n in range(RANKS)]
    dist.all_gather(different, torch.full((rank,), float(rank)))
    for n, tensor in enumerate(different):
        equal(tensor, torch.full((n,), float(n)))
    part = torch.zeros(rank)
    dist.reduce_scatter(part, [torch.full((n,), float(n)) for n in range(RANKS)])
    equal(part, torch.full((rank,), float(rank * RANKS)))
    places = [torch.zeros(n * rank) for n in range(RANKS)]
    work = dist.all_to_all(
        places, [torch.full((n * rank,), float(rank)) for n in range(RANKS)], async_op=True
    )
    work.wait()
    for n, tensor in enumerate(places):
        equal(tensor, torch.full((n * rank,), float(n)))
    numbers, nothing = torch.zeros(RANKS * LARGE, dtype=torch.uint8), torch.zeros(0)
    mine, no_part = torch.full((LARGE,), rank + 1, dtype=torch.uint8), torch.zeros(0)
    group = dist.distributed_c10d._get_default_group()
    group.allgather_into_tensor_coalesced([numbers, nothing], [mine, no_part]).wait()
    assert torch.equal(numbers[::LARGE], torch.arange(RANKS, dtype=torch.uint8) + 1)
    objects: list[Any] = [None] * RANKS
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(RANKS)]
    words = ["from 2"] if rank == 2 else [None]
    dist.broadcast_object_list(words, 2)
    assert words == ["from 2"]
    dist.barrier()


def messages(rank: int) -> None:
    """Check messages: blocking, at the same time in a ring, with tags out of order, and from any rank."""
    after, before = (rank + 1) % RANKS, (rank - 1) % RANKS
    large = torch.arange(LARGE, dtype=torch.float32) * (rank + 1)
    place = torch.zeros(LARGE)
    if rank % 2:
        dist.send(large, after)
        assert dist.recv(place, before) == before
    else:
        assert dist.recv(place, before) == before
        dist.send(large, after)
    equal(place, torch.arange(LARGE, dtype=torch.float32) * (before + 1))
    place.zero_()
    both = [dist.P2POp(dist.isend, large, after), dist.P2POp(dist.irecv, place, before)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    equal(place, torch.arange(LARGE, dtype=torch.float32) * (before + 1))
    nothing = dist.isend(torch.zeros(0), after)
    assert dist.recv(torch.zeros(0), before) == before
    nothing.wait()
    sends = [dist.isend(torch.tensor([rank, tag]), after, tag=tag) for tag in (5, 6)]
    for tag in (6, 5):
        pair = torch.zeros(2, dtype=torch.int64)
        dist.recv(pair, before, tag=tag)
        equal(pair, torch.tensor([before, tag]))
    for work in sends:
        work.wait()
    if rank == 0:
        found = torch.zeros(1, dtype=torch.int64)
        senders = {dist.recv(found, tag=9): int(found) for _ in range(RANKS - 1)}
        assert senders == {1: 1, 2: 4, 3: 9}, senders
    else:
        dist.send(torch.tensor([rank**2]), 0, tag=9)
    # Messages and collectives run at the same time. After them, a group of two ranks gets separate NICs.
    receiving = dist.irecv(place, before)
    total = torch.ones(10)
    dist.all_reduce(total)
    dist.isend(large, after).wait()
    receiving.wait()
    equal(total, torch.full((10,), 4.0))
    pair_of_ranks = dist.new_group([1, 3])
    if rank in (1, 3):
        one = torch.tensor([rank])
        dist.all_reduce(one, group=pair_of_ranks)
        equal(one, torch.tensor([4]))
        if rank == 1:
            dist.send(one, 3, group=pair_of_ranks)
        else:
            assert dist.recv(one, 1, group=pair_of_ranks) == 1
    try:
        dist.isend(total, rank)
    except (ValueError, RuntimeError):
        pass
    else:
        raise AssertionError("a rank sent to itself")
    dist.barrier()


def fails(call: Callable[[], Any], text: str) -> None:
    """Check that a call raises an error with this text."""
    found = ""
    try:
        call()
    except (ValueError, RuntimeError) as error:
        found = str(error)
    assert text in found, found


def errors(rank: int) -> None:
    """Check that an operation that has failed, or is not complete in time, raises an exception."""
    place = torch.zeros(5)
    late = dist.irecv(place, (rank - 1) % RANKS, tag=8)
    fails(lambda: late.wait(timedelta(milliseconds=100)), "timed out")
    assert not late.is_completed()
    dist.barrier()
    dist.send(torch.zeros(3), (rank + 1) % RANKS, tag=8)
    for wait in (late.wait, late.get_future().wait):
        fails(wait, "sent 12 bytes with tag 8, not 20")
    assert late.is_completed()


def main() -> None:
    """Run all checks. Each rank prints a line at its end."""
    torch.set_num_threads(1)
    dist.init_process_group(mrclab.testbed.programs.process_group.BACKEND)
    rank = dist.get_rank()
    assert (dist.get_world_size(), rank) == (RANKS, int(os.environ["RANK"]))
    reductions(rank)
    copies(rank)
    messages(rank)
    errors(rank)
    # All ranks write into one pipe. With PYTHONUNBUFFERED, print() would write the line in two parts.
    sys.stdout.write(f"rank {rank} of {dist.get_backend()}: all right\n")
    sys.stdout.flush()
    dist.destroy_process_group()


main()
