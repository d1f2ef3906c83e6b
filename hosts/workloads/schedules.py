"""Collective operations as schedules: which part of a buffer is sent to which rank, in rounds.

A buffer has ``parts`` equal parts. A rank posts all sends of a round, waits for the round's receives, and
then begins the next round. `rank` and the peers are positions in the group. `SCHEDULES` lists the algorithms
of each operation; the first is the default. Sources: Thakur, Rabenseifner, Gropp, Optimization of Collective
Communication Operations in MPICH, 2005; NCCL for the ring and the phases of all-to-all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

PIECES: Final = 8
"""Number of pieces in which a ring broadcast forwards the buffer."""


@dataclass(frozen=True, slots=True)
class Move:
    """Parts ``first`` to ``last`` (exclusive) of a rank's data, which are sent to or received from ``peer``.

    Both ends use the same ``step``.
    """

    peer: int
    first: int
    last: int
    step: int


@dataclass(frozen=True, slots=True)
class Round:
    """Sends that are posted together, and the receives that the round waits for.

    If ``reduce`` is true, the received data is added to the rank's own data.
    """

    sends: tuple[Move, ...] = ()
    receives: tuple[Move, ...] = ()
    reduce: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """All rounds of one rank in one operation."""

    parts: int
    steps: int
    """A number above the ``step`` of every move."""
    rounds: tuple[Round, ...]


Make = Callable[[int, int, int], Schedule]
"""A function of a rank, the size of the group, and the number of ranks on a host."""


def _ring_reduce_scatter(rank: int, n: int, own: int, step: int = 0) -> list[Round]:
    """Return the rounds after which the rank has the sum of part ``own``.

    ``own`` is rank or rank + 1 (modulo n), with the same choice on all ranks.
    """
    after, before = (rank + 1) % n, (rank - 1) % n
    return [
        Round(
            (Move(after, part := (own - 1 - s) % n, part + 1, step + s),),
            (Move(before, part := (own - 2 - s) % n, part + 1, step + s),),
            reduce=True,
        )
        for s in range(n - 1)
    ]


def _ring_all_gather(rank: int, n: int, own: int, step: int = 0) -> list[Round]:
    """Return the rounds that forward every part around the ring. The rank begins with part ``own``."""
    after, before = (rank + 1) % n, (rank - 1) % n
    return [
        Round(
            (Move(after, part := (own - s) % n, part + 1, step + s),),
            (Move(before, part := (own - 1 - s) % n, part + 1, step + s),),
        )
        for s in range(n - 1)
    ]


def ring_all_reduce(rank: int, n: int, _local: int) -> Schedule:
    """Run a reduce-scatter, then an all-gather, on a ring. Each rank sends 2 (n - 1) / n of the buffer."""
    own = (rank + 1) % n
    rounds = _ring_reduce_scatter(rank, n, own) + _ring_all_gather(rank, n, own, n)
    return Schedule(n, 2 * n, tuple(rounds))


def ring_reduce_scatter(rank: int, n: int, _local: int) -> Schedule:
    """Sum on a ring. At the end rank r has the sum of part r."""
    return Schedule(n, n, tuple(_ring_reduce_scatter(rank, n, rank)))


def ring_all_gather(rank: int, n: int, _local: int) -> Schedule:
    """Forward each rank's part of the buffer around a ring, until every rank has all parts."""
    return Schedule(n, n, tuple(_ring_all_gather(rank, n, rank)))


def halving_doubling(rank: int, n: int, _local: int) -> Schedule:
    """Sum by recursive halving, then recursive doubling, in 2 log2(n) rounds: Rabenseifner's all-reduce.

    If n is not a power of two, some ranks send their data to a neighbour before the first round. These ranks
    take no part in the other rounds, and get the result after the last round.
    """
    bits = n.bit_length() - 1
    power = 1 << bits
    extra = n - power
    fold, last = 0, 2 * bits + 1
    if rank < 2 * extra and rank % 2 == 0:
        whole = (Move(rank + 1, 0, power, fold),)
        back = (Move(rank + 1, 0, power, last),)
        return Schedule(power, last + 1, (Round(whole), Round((), back)))
    new = rank // 2 if rank < 2 * extra else rank - extra

    def real(number: int) -> int:
        return 2 * number + 1 if number < extra else number + extra

    rounds = []
    if rank < 2 * extra:
        rounds.append(Round((), (Move(rank - 1, 0, power, fold),), reduce=True))
    low, high, distance = 0, power, power // 2
    gathers = []
    for step in range(1, bits + 1):
        middle = (low + high) // 2
        kept, given = ((middle, high), (low, middle)) if new & distance else ((low, middle), (middle, high))
        peer = real(new ^ distance)
        rounds.append(Round((Move(peer, *given, step),), (Move(peer, *kept, step),), reduce=True))
        gathers.append(
            Round((Move(peer, *kept, 2 * bits + 1 - step),), (Move(peer, *given, 2 * bits + 1 - step),))
        )
        low, high = kept
        distance //= 2
    rounds += reversed(gathers)
    if rank < 2 * extra:
        rounds.append(Round((Move(rank - 1, 0, power, last),)))
    return Schedule(power, last + 1, tuple(rounds))


def hierarchical_all_reduce(rank: int, n: int, local: int) -> Schedule:
    """Reduce-scatter among the ranks of a host, all-reduce each part among hosts, all-gather on the host.

    Each host has ``local`` ranks. If n is not a multiple of ``local``, all ranks are one ring.
    """
    if local <= 1 or n % local or local == n:
        return ring_all_reduce(rank, n, local)
    hosts, host, place = n // local, rank // local, rank % local
    base = host * local

    def inside(rounds: list[Round]) -> list[Round]:
        return [_moved(r, lambda p: base + p, lambda first: first * hosts, hosts) for r in rounds]

    def across(rounds: list[Round]) -> list[Round]:
        return [
            _moved(r, lambda p: p * local + place, lambda first: place * hosts + first, 1) for r in rounds
        ]

    own = (host + 1) % hosts
    rounds = inside(_ring_reduce_scatter(place, local, place))
    rounds += across(_ring_reduce_scatter(host, hosts, own, local))
    rounds += across(_ring_all_gather(host, hosts, own, local + hosts))
    rounds += inside(_ring_all_gather(place, local, place, local + 2 * hosts))
    return Schedule(local * hosts, 2 * (local + hosts), tuple(rounds))


def _moved(r: Round, peer: Callable[[int], int], first: Callable[[int], int], width: int) -> Round:
    """Convert a round of a subgroup to a round of the whole group, with new numbers of peers and parts."""

    def moves(listed: tuple[Move, ...]) -> tuple[Move, ...]:
        return tuple(
            replace(m, peer=peer(m.peer), first=first(m.first), last=first(m.first) + width) for m in listed
        )

    return replace(r, sends=moves(r.sends), receives=moves(r.receives))


def all_to_all_at_once(rank: int, n: int, _local: int) -> Schedule:
    """Send part j to rank j, all at the same time. Each rank begins with its next neighbour."""
    sends = tuple(Move(p := (rank + d) % n, p, p + 1, 0) for d in range(1, n))
    receives = tuple(Move(p := (rank - d) % n, p, p + 1, 0) for d in range(1, n))
    return Schedule(n, 1, (Round(sends, receives),))


def all_to_all_phases(rank: int, n: int, _local: int) -> Schedule:
    """Send part j to rank j in n - 1 phases. In phase d, each rank sends to rank + d."""
    rounds = tuple(
        Round((Move(to := (rank + d) % n, to, to + 1, d),), (Move(p := (rank - d) % n, p, p + 1, d),))
        for d in range(1, n)
    )
    return Schedule(n, n, rounds)


def tree_broadcast(rank: int, n: int, _local: int) -> Schedule:
    """Copy the buffer of rank 0 to all ranks, along a binomial tree."""
    return Schedule(1, n.bit_length() + 1, tuple(_tree(rank, n)))


def tree_reduce(rank: int, n: int, _local: int) -> Schedule:
    """Sum all buffers into rank 0, along a binomial tree."""
    turned = [Round(r.receives, r.sends, reduce=bool(r.sends)) for r in reversed(_tree(rank, n))]
    return Schedule(1, n.bit_length() + 1, tuple(turned))


def _tree(rank: int, n: int) -> list[Round]:
    rounds = []
    top = n.bit_length()
    for step in range(top + 1):
        distance = 1 << step
        if rank < distance and rank + distance < n:
            rounds.append(Round((Move(rank + distance, 0, 1, step),)))
        elif distance <= rank < 2 * distance:
            rounds.append(Round((), (Move(rank - distance, 0, 1, step),)))
    return rounds


def ring_broadcast(rank: int, n: int, _local: int) -> Schedule:
    """Forward the buffer of rank 0 along a chain, in pieces."""
    rounds = []
    for piece in range(PIECES + 1):
        send = (Move(rank + 1, piece - 1, piece, piece - 1),) if piece and rank + 1 < n else ()
        take = (Move(rank - 1, piece, piece + 1, piece),) if rank and piece < PIECES else ()
        if send or take:
            rounds.append(Round(send, take))
    return Schedule(PIECES, PIECES, tuple(rounds))


def gather(rank: int, n: int, _local: int) -> Schedule:
    """Copy every rank's part to rank 0."""
    if rank:
        return Schedule(n, 1, (Round((Move(0, rank, rank + 1, 0),)),))
    return Schedule(n, 1, (Round((), tuple(Move(p, p, p + 1, 0) for p in range(1, n))),))


def scatter(rank: int, n: int, _local: int) -> Schedule:
    """Copy part r of rank 0's buffer to each rank r."""
    if rank:
        return Schedule(n, 1, (Round((), (Move(0, rank, rank + 1, 0),)),))
    return Schedule(n, 1, (Round(tuple(Move(p, p, p + 1, 0) for p in range(1, n))),))


def dissemination_barrier(rank: int, n: int, _local: int) -> Schedule:
    """Wait until all ranks take part, in log2(n) rounds (Hensgen, Finkel, Manber, 1988)."""
    rounds: list[Round] = []
    distance = 1
    while distance < n:
        step = len(rounds)
        to, back = (rank + distance) % n, (rank - distance) % n
        rounds.append(Round((Move(to, 0, 1, step),), (Move(back, 0, 1, step),)))
        distance *= 2
    return Schedule(1, max(1, len(rounds)), tuple(rounds))


SCHEDULES: Final[Mapping[str, Mapping[str, Make]]] = {
    "all-reduce": {
        "ring": ring_all_reduce,
        "halving-doubling": halving_doubling,
        "hierarchical": hierarchical_all_reduce,
    },
    "reduce-scatter": {"ring": ring_reduce_scatter},
    "all-gather": {"ring": ring_all_gather},
    "all-to-all": {"at-once": all_to_all_at_once, "phases": all_to_all_phases},
    "broadcast": {"tree": tree_broadcast, "ring": ring_broadcast},
    "reduce": {"tree": tree_reduce},
    "gather": {"direct": gather},
    "scatter": {"direct": scatter},
    "barrier": {"dissemination": dissemination_barrier},
}
"""The algorithms of each operation. The first is the default."""


def schedule_of(collective: str, algorithm: str, rank: int, n: int, local: int = 1) -> Schedule:
    """Return a rank's schedule. If ``algorithm`` is empty, use the operation's default.

    Raise KeyError for an operation or an algorithm that does not exist.
    """
    algorithms = SCHEDULES[collective]
    make = algorithms[algorithm] if algorithm else next(iter(algorithms.values()))
    return make(rank, n, local) if n > 1 else Schedule(1, 1, ())
