"""The job that plays a graph on a rank: an operation begins when its predecessors have ended.

Collectives and messages become puts, whose bytes are a fixed pattern that receivers check. A rank has two
streams of computations, GPU and CPU. Each of the two streams runs one operation at a time. Communication runs
at the same time, and all communications that are ready run together. A barrier separates steps.
``summary_of`` returns the operations, bytes and groups of a graph, and the time of a step without a network.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Mapping
from functools import lru_cache
from heapq import heappop, heappush
from itertools import accumulate
from typing import Any, Final

import numpy as np

from mrclab.hosts.collectives.channel import TAG_BITS
from mrclab.hosts.collectives.collective_operations import DATA, MAX_ROUNDS, barrier, expose_for_collectives
from mrclab.hosts.collectives.communicator import Communicator, Samples, Steps, Times, Wait, columns
from mrclab.hosts.workloads.graph import AFTER, CPU, GPU, WAIT, Matched, Op, chains, in_order, job_of
from mrclab.hosts.workloads.schedules import Move, Round, Schedule, schedule_of
from mrclab.hosts.workloads.sources import source_of
from mrclab.linux.errors import InputError

PUT_BYTES: Final = 1 << 20
"""Largest put, bytes. A larger message needs several puts, to limit the memory of a rank."""
BARRIER_BYTES: Final = 8


def buffer_bytes(op: Op) -> int:
    """Return the size of the whole buffer of a collective, or of a message, bytes."""
    if op.collective in ("all-gather", "gather"):
        return op.size_bytes * len(op.group)
    return BARRIER_BYTES if op.collective == "barrier" else op.size_bytes


def move_bytes(op: Op, schedule: Schedule, move: Move) -> int:
    """Return the size of a move: at least one byte, because an empty message must also arrive."""
    return max(1, -(-buffer_bytes(op) // schedule.parts) * (move.last - move.first))


def largest_move(op: Op, schedule: Schedule) -> int:
    """Return an upper limit for the bytes of any move of a collective."""
    return max(1, -(-buffer_bytes(op) // schedule.parts) * schedule.parts)


class Plan:
    """The tags of all communications. They are equal on all ranks."""

    def __init__(self, graph: Matched, algorithms: Mapping[str, str], local: int) -> None:
        """Assign tags to the messages. Raise InputError if the graph has more messages than tags."""
        self.graph = graph
        self._algorithms = algorithms
        self._local = local
        needed, self._pieces, largest = [], [], 1
        for op in graph.ops:
            schedule = self.schedule(op, 0)
            most = max(self.schedule(op, place).steps for place in range(len(op.group) or 1))
            moved = largest_move(op, schedule)
            largest = max(largest, moved)
            self._pieces.append(-(-moved // PUT_BYTES))
            needed.append(most * self._pieces[-1])
        self._bases = [0, *accumulate(needed)]
        self.tags = self._bases[-1]
        self.put_bytes = min(PUT_BYTES, largest)
        """Largest size of a put in this graph, bytes."""
        if self.tags > (1 << TAG_BITS) - 2 * MAX_ROUNDS:
            raise InputError(f"{graph.graph.name}: {self.tags} messages in a step: {1 << TAG_BITS} at most")

    def schedule(self, op: Op, place: int) -> Schedule:
        """Return the schedule of an operation for the rank at ``place`` in its group."""
        if op.kind != "collective":
            return Schedule(1, 1, ())
        algorithm = self._algorithms.get(op.collective, "")
        return schedule_of(op.collective, algorithm, place, len(op.group), self._local)

    def schedule_on(self, op: Op, rank: int) -> Schedule:
        """Return a rank's schedule, in which a peer is a rank of the graph and not a place in the group."""
        if op.kind == "send":
            return Schedule(1, 1, (Round(sends=(Move(op.peer, 0, 1, 0),)),))
        if op.kind == "receive":
            return Schedule(1, 1, (Round(receives=(Move(op.peer, 0, 1, 0),)),))
        found = self.schedule(op, op.group.index(rank))

        def moves(listed: tuple[Move, ...]) -> tuple[Move, ...]:
            return tuple(Move(op.group[m.peer], m.first, m.last, m.step) for m in listed)

        rounds = tuple(Round(moves(r.sends), moves(r.receives), r.reduce) for r in found.rounds)
        return Schedule(found.parts, found.steps, rounds)

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Return all pairs (sender, receiver) of ranks between which data is sent."""
        found = set()
        for op in self.graph.ops:
            for rank in op.group:
                for r in self.schedule_on(op, rank).rounds:
                    found |= {(rank, move.peer) for move in r.sends}
        for rank, listed in enumerate(self.graph.graph.ranks):
            found |= {(rank, op.peer) for op in listed if op.kind == "send"}
        return tuple(sorted(found))

    def tags_of(self, rank: int, op: Op) -> tuple[int, int]:
        """Return an operation's first tag, and the number of tags for each step of its schedule."""
        number = self.graph.instance[rank, op.number]
        return self._bases[number], self._pieces[number]


@lru_cache(maxsize=4)
def _plan(source: str, algorithms: tuple[tuple[str, str], ...], local: int) -> Plan:
    return Plan(source_of(source), dict(algorithms), local)


def plan_of(params: Mapping[str, Any]) -> Plan:
    """Return the plan for a job's parameters (cached). Raise InputError for bad parameters."""
    algorithms = tuple(sorted(dict(params.get("algorithms", {})).items()))
    return _plan(params["source"], algorithms, params.get("local", 1))


@lru_cache(maxsize=4)
def pattern(size_bytes: int) -> memoryview:
    """Return the payload of puts: the values 1 to 251, repeated."""
    return memoryview((bytes(range(1, 252)) * (size_bytes // 251 + 1))[:size_bytes])


class Exchange:
    """A communication of this rank that is not complete yet."""

    def __init__(self, comm: Communicator, plan: Plan, op: Op, base: int) -> None:
        self._comm = comm
        self._op = op
        self._schedule = plan.schedule_on(op, comm.rank)
        first, self._pieces = plan.tags_of(comm.rank, op)
        self._first = base + first
        self._data = pattern(plan.put_bytes)
        self._rounds = deque(self._schedule.rounds)
        self._tickets: list[int] = []
        self._expected: deque[tuple[int, int, int]] = deque()
        self.problem: str | None = None
        self._post()

    def _puts(self, move: Move) -> list[tuple[int, int]]:
        """Return the tag and the length of each put of a move."""
        left = move_bytes(self._op, self._schedule, move)
        tag = self._first + move.step * self._pieces
        found: list[tuple[int, int]] = []
        while left > 0:
            found.append((tag + len(found), min(left, PUT_BYTES)))
            left -= PUT_BYTES
        return found

    def _data_of(self, length: int) -> memoryview:
        return self._data[:length]

    def _post(self) -> None:
        """Post the sends of the next round, and store the receives that this round expects."""
        if not self._rounds:
            return
        following = self._rounds.popleft()
        for move in following.sends:
            for tag, length in self._puts(move):
                self._tickets.append(self._comm.put(move.peer, DATA, 0, self._data_of(length), tag))
        for move in following.receives:
            self._expected += ((move.peer, tag, length) for tag, length in self._puts(move))

    def advance(self) -> bool:
        """Continue as far as possible. Return True if all receives and all puts are complete."""
        while True:
            while self._expected:
                peer, tag, length = self._expected[0]
                arrived = self._comm.take_arrival(peer, tag)
                if arrived is None:
                    return False
                self._expected.popleft()
                if arrived.length_bytes != length and self.problem is None:
                    self.problem = f"{arrived.length_bytes} bytes from rank {peer}, not {length}"
            if not self._rounds:
                break
            self._post()
        while self._tickets and not self._comm.under_way(self._tickets[-1]):
            self._tickets.pop()
        return not self._tickets


class GraphJob:
    """A rank's part of a graph, which is played once in each step."""

    def __init__(self, params: Mapping[str, Any], rank: int, size: int, seed: int) -> None:
        del seed
        self.problem: str | None = None
        self._plan = plan_of(params)
        self._ops = self._plan.graph.graph.ranks[rank]
        self._rank = rank
        self._size = size
        self._steps = params.get("steps", 1)
        self._warm_up = params.get("warmup_steps", 0)
        self._notes: list[tuple[int, int, int, int, int]] = []
        self._job = job_of(self._plan.graph.graph.jobs, rank)
        self._op_notes: list[tuple[int, int, int, int, int]] = []
        self._then: dict[int, list[int]] = {}
        self._place = {op.number: i for i, op in enumerate(self._ops)}
        for i, op in enumerate(self._ops):
            for number in op.after:
                self._then.setdefault(self._place[number], []).append(i)

    def prepare(self, comm: Communicator) -> None:
        """See Job."""
        expose_for_collectives(comm, self._plan.put_bytes, np.dtype(np.uint8), scratch=False)

    def peers(self) -> set[int]:
        """See Job. These are the peers of the communications and of the barrier."""
        found = set()
        for op in self._ops:
            if op.kind != "compute":
                for r in self._plan.schedule_on(op, self._rank).rounds:
                    found |= {move.peer for move in (*r.sends, *r.receives)}
        distance = 1
        while distance < self._size:
            found |= {(self._rank + distance) % self._size, (self._rank - distance) % self._size}
            distance *= 2
        return found - {self._rank}

    def steps(self, comm: Communicator, times: Times) -> Steps[None]:
        """See Job."""
        yield from comm.until(times.start_ns)
        for step in range(-self._warm_up, self._steps):
            yield from barrier(comm)
            if step == 0:
                yield from comm.until(times.measure_ns)
            started = comm.now()
            computed = yield from self._play(comm, step)
            if step >= 0:
                self._notes.append((step, started, comm.now(), computed, self._job))
            if self.problem is not None:
                break
        yield from barrier(comm)

    def _play(self, comm: Communicator, step: int) -> Steps[int]:
        """Play the graph once. Return the computing time of the GPU stream, ns."""
        base = comm.tags(self._plan.tags)
        waits = [len(op.after) for op in self._ops]
        ready = deque(i for i, count in enumerate(waits) if not count)
        queues: dict[int, deque[int]] = {CPU: deque(), GPU: deque()}
        busy: dict[int, tuple[int, int]] = {}
        timers: list[tuple[int, int]] = []
        exchanges: dict[int, Exchange] = {}
        began: dict[int, int] = {}
        left, computed = len(self._ops), 0
        started = comm.now()
        while True:
            over: list[int] = []
            now = comm.now()
            while ready:
                i = ready.popleft()
                op = self._ops[i]
                if op.kind != "compute":
                    began[i] = now
                    exchanges[i] = Exchange(comm, self._plan, op, base)
                elif op.stream in (WAIT, AFTER):
                    heappush(timers, ((started if op.stream == WAIT else now) + op.duration_ns, i))
                elif op.duration_ns:
                    queues[op.stream].append(i)
                else:
                    over.append(i)
            for i, exchange in list(exchanges.items()):
                if exchange.advance():
                    del exchanges[i]
                    over.append(i)
                if exchange.problem is not None:
                    self.problem = f"rank {self._rank}, operation {self._ops[i].number}: {exchange.problem}"
                    return computed
            for stream, queue in queues.items():
                if stream in busy and busy[stream][1] <= now:
                    over.append(busy.pop(stream)[0])
                if queue and stream not in busy:
                    i = queue.popleft()
                    began[i] = now
                    busy[stream] = (i, now + self._ops[i].duration_ns)
                    computed += self._ops[i].duration_ns if stream == GPU else 0
            while timers and timers[0][0] <= now:
                over.append(heappop(timers)[1])
            for i in over:
                left -= 1
                if i in began and step >= 0:
                    op = self._ops[i]
                    self._op_notes.append((step, op.number, op.size_bytes, began[i], now))
                for later in self._then.get(i, ()):
                    waits[later] -= 1
                    if not waits[later]:
                        ready.append(later)
            if not left:
                self._check(comm)
                return computed
            if not ready and not over:
                seen = comm.taken
                dues = [*(end for _, end in busy.values()), *(at for at, _ in timers[:1])]
                due = min(dues, default=None)
                yield Wait(lambda seen=seen: comm.taken != seen, due)  # type: ignore[misc]

    def _check(self, comm: Communicator) -> None:
        """Compare the received bytes with the pattern. Bytes that were never written are zero."""
        found = np.frombuffer(comm.regions[DATA], np.uint8)
        wrong = np.flatnonzero((found != np.frombuffer(pattern(len(found)), np.uint8)) & (found != 0))
        if len(wrong):
            self.problem = f"rank {self._rank}: byte {wrong[0]} of the received data is {found[wrong[0]]}"

    def samples(self) -> Samples:
        """See Job. Columns with the prefix "op" have a row per operation, other columns a row per step."""
        names = ("op_step", "op", "op_bytes", "op_start_ns", "op_end_ns")
        operations = columns(self._op_notes, names)
        return columns(self._notes, ("step", "start_ns", "end_ns", "compute_ns", "job")) | operations


def summary_of(matched: Matched, algorithms: Mapping[str, str], ranks_per_host: int = 1) -> dict[str, Any]:
    """Return a graph's numbers of operations, bytes and messages, and two durations, in JSON's types.

    The durations are the time of computation and `step_ns`. The bytes on the wire depend on the algorithms.
    """
    graph = matched.graph
    plan = Plan(matched, algorithms, ranks_per_host)
    kinds = Counter(op.kind for listed in graph.ranks for op in listed)
    rows: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0, 0])
    sent = [0] * graph.size
    for op in matched.ops:
        what = op.collective or "message"
        members = op.group if op.kind == "collective" else ()
        row = rows[what, len(members) or 2]
        row[0] += 1
        row[1] += op.size_bytes
        wire = op.size_bytes if not members else 0
        for rank in members:
            schedule = plan.schedule_on(op, rank)
            out = sum(move_bytes(op, schedule, move) for r in schedule.rounds for move in r.sends)
            sent[rank] += out
            wire += out
        row[2] += wire
    for rank, listed in enumerate(graph.ranks):
        sent[rank] += sum(op.size_bytes for op in listed if op.kind == "send")
    computing = [sum(op.duration_ns for op in listed if op.stream == GPU) for listed in graph.ranks]
    return {
        "name": graph.name,
        "ranks": graph.size,
        "operations": dict(sorted(kinds.items())),
        "communication": [
            {"what": what, "ranks": size, "count": count, "bytes": total, "wire_bytes": wire}
            for (what, size), (count, total, wire) in sorted(rows.items())
        ],
        "sent_bytes": {"least": min(sent), "most": max(sent), "all": sum(sent)},
        "computing_us": {"least": min(computing) / 1e3, "most": max(computing) / 1e3},
        "step_us": step_ns(matched) / 1e3,
        "messages": plan.tags,
    }


def step_ns(matched: Matched) -> int:
    """Return the shortest possible duration of a step, ns, if communication took no time.

    This is the time of the longest chain of operations or of the busiest stream, whichever is longer.
    """
    graph = matched.graph
    node, before = chains(graph, matched.instance)
    own: dict[Hashable, int] = defaultdict(int)
    busiest = 0
    for rank, listed in enumerate(graph.ranks):
        streams = {CPU: 0, GPU: 0}
        for op in listed:
            place = node[rank, op.number]
            own[place] = max(own[place], op.duration_ns)
            streams[op.stream] += op.duration_ns
        busiest = max(busiest, *streams.values())
    end: dict[Hashable, int] = {}
    for item in in_order(before):
        end[item] = own[item] + max((end[earlier] for earlier in before[item]), default=0)
    return max(busiest, *end.values())
