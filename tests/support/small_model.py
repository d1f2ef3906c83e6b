"""Explore all possible short runs of two NICs with two paths and two queue pairs that share a window.

The NICs run the real core. A schedule is a list of steps of an adversary. The adversary chooses which frame
in flight arrives or is lost next. It can also fire timers, mark frames, fail ports and act as an operator.
`explore` tries all schedules up to a length. If several schedules lead to the same state (compared by a
hash), it continues only one of them. After each schedule, all frames arrive and timers fire. Then the
properties that `World.broken` checks must hold.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from mrclab.hosts.mrc import Endpoint, MrcConfig
from mrclab.hosts.rdma.events import Event, QpError, ReceiveCompleted, SendCompleted, Status
from tests.support.mrc_sim import is_data, mark_ce, port_addresses, remote_paths

Step = tuple[str, int]
PLANES, MTU = 2, 64
MESSAGES = ((2 * MTU + 5, 9), (MTU,))
"""Message lengths of each queue pair: 3 and 1 packets for the first pair, 1 packet for the second pair."""
NEAR = 2
"""How many of the oldest frames in flight may arrive or be lost next."""
FAIR_STEPS = 4000


@dataclass
class Budget:
    """The number of times that the adversary may interfere, by kind."""

    lose: int = 2
    mark: int = 1
    port: int = 1
    deny: int = 1


@dataclass
class Found:
    """The outcome of an exploration."""

    states: int = 0
    schedules: int = 0
    failures: list[tuple[tuple[Step, ...], str]] = field(default_factory=list)


class World:
    """Two NICs and the frames between them."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        config = MrcConfig(mtu_bytes=MTU, sack_coalesce=1, max_active_evs=2, **options)
        self.ends = [Endpoint(port_addresses(n, PLANES), config, random.Random(n)) for n in (0, 1)]
        self.now_ns = 1_000_000
        self.flying: list[tuple[int, int, bytes]] = []
        self.events: tuple[list[Event], list[Event]] = ([], [])
        self.budget = Budget()
        self.pairs = [[end.create_qp() for end in self.ends] for _ in MESSAGES]
        self.memory = [bytearray(sum(lengths)) for lengths in MESSAGES]
        for pair, lengths, memory in zip(self.pairs, MESSAGES, self.memory, strict=True):
            for me in (0, 1):
                remote = self.ends[1 - me].local_attributes(pair[1 - me])
                self.ends[me].connect(pair[me], remote, remote_paths(me, 1 - me, PLANES, 1))
            region = self.ends[1].register_memory(memory)
            at = 0
            for number, length in enumerate(lengths):
                data = bytes((number + i) % 251 + 1 for i in range(length))
                self.ends[0].post_write(pair[0], number, data, region.address + at, region.rkey, imm=number)
                at += length
        self._drain()

    def _drain(self) -> None:
        for n, end in enumerate(self.ends):
            while batch := end.frames_to_send(self.now_ns):
                self.flying += [(1 - n, port, bytes(frame)) for port, frame in batch]
            self.events[n].extend(end.events())

    def steps(self) -> Iterator[Step]:
        """Yield the steps that the adversary may take now."""
        budget = self.budget
        for at in range(min(NEAR, len(self.flying))):
            yield "arrive", at
            if budget.lose:
                yield "lose", at
            if budget.mark and is_data(self.flying[at][2]):
                yield "mark", at
        if any(end.next_timer() is not None for end in self.ends):
            yield "timer", 0
        if budget.port:
            yield "port", 0
        if budget.deny:
            yield "deny", 0

    def take(self, step: Step) -> None:
        """Take one step."""
        kind, at = step
        if kind in ("arrive", "lose", "mark"):
            target, port, frame = self.flying.pop(at)
            if kind != "lose":
                frame = mark_ce(frame) if kind == "mark" else frame
                self.ends[target].receive(port, frame, self.now_ns)
        elif kind == "timer":
            self.now_ns = max(self.now_ns, min(t for e in self.ends if (t := e.next_timer()) is not None))
            for end in self.ends:
                due = end.next_timer()
                if due is not None and due <= self.now_ns:
                    end.handle_timer(self.now_ns)
        elif kind == "port":
            self.ends[1].set_port_state(1, False, self.now_ns)
        else:
            self._set_all("deny")
        if kind in ("lose", "mark", "port", "deny"):
            setattr(self.budget, kind, getattr(self.budget, kind) - 1)
        self._drain()

    def _set_all(self, do: str) -> None:
        end = self.ends[0]
        for pair in self.pairs:
            getattr(end, do)([c.ev for c in end.ev_counters(pair[0])], self.now_ns, pair[0])

    def finish(self) -> str | None:
        """Let all frames arrive and timers fire. Return the first property that does not hold, or None."""
        self._set_all("allow")
        self.ends[1].set_port_state(1, True, self.now_ns)
        self._drain()
        for _ in range(FAIR_STEPS):
            if self.flying:
                self.take(("arrive", 0))
            elif self._done() and self._statuses_equal():
                break
            elif any(end.next_timer() is not None for end in self.ends):
                self.take(("timer", 0))
            else:
                break
        return self.broken()

    def _done(self) -> bool:
        return sum(isinstance(e, SendCompleted) for e in self.events[0]) == sum(map(len, MESSAGES))

    def _statuses_equal(self) -> bool:
        return all(
            plane.peer_up == self.ends[1 - n].port_states[plane.port].listens
            for n, end in enumerate(self.ends)
            for qp in end.qps.values()
            for plane in qp.evs.planes
        )

    def broken(self) -> str | None:
        """Return the first property that does not hold."""
        if any(isinstance(event, QpError) for events in self.events for event in events):
            return "a queue pair failed"
        for number, (pair, lengths) in enumerate(zip(self.pairs, MESSAGES, strict=True)):
            sent = [e for e in self.events[0] if isinstance(e, SendCompleted) and e.qpn == pair[0]]
            got = [e for e in self.events[1] if isinstance(e, ReceiveCompleted) and e.qpn == pair[1]]
            if [(e.wr_id, e.status) for e in sent] != [(n, Status.SUCCESS) for n in range(len(lengths))]:
                return f"queue pair {number} is not done, or out of order: starved or deadlocked"
            if [(e.imm, e.length_bytes) for e in got] != list(enumerate(lengths)):
                return "a message was lost, doubled or out of order"
            expected = b"".join(
                bytes((n + i) % 251 + 1 for i in range(length)) for n, length in enumerate(lengths)
            )
            if bytes(self.memory[number]) != expected:
                return "bytes are missing or wrong"
            if self.ends[1].bytes_placed(pair[1]) != len(expected):
                return "bytes were placed twice"
        return None if self._statuses_equal() else "the ends differ about ports"

    def digest(self) -> bytes:
        """Return a hash over the state of the NICs and the frames in flight."""
        seen: dict[int, int] = {}
        parts = deque([repr((self.flying, self.now_ns, self.budget))])
        for end in self.ends:
            _walk(end, seen, parts)
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).digest()


_PLAIN = (int, float, str, bytes, bool, type(None), Enum)
_CODE = (FunctionType, MethodType, BuiltinFunctionType, type)


def _walk(value: Any, seen: dict[int, int], parts: deque[str]) -> None:
    """Append the content of an object to `parts`. Each object is read only once."""
    if isinstance(value, _PLAIN):
        parts.append(repr(value))
    elif isinstance(value, random.Random):
        parts.append(repr(hash(value.getstate())))
    elif isinstance(value, bytearray | memoryview):
        parts.append(bytes(value).hex())
    elif isinstance(value, (*_CODE, MrcConfig)):
        return
    elif id(value) in seen:
        parts.append(f"#{seen[id(value)]}")
    else:
        seen[id(value)] = len(seen)
        parts.append(type(value).__name__)
        for item in _items(value):
            _walk(item, seen, parts)


def _items(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [item for pair in value.items() for item in pair]
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, list | tuple | deque):
        return list(value)
    names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return [getattr(value, n) for n in (*names, *getattr(value, "__dict__", ())) if hasattr(value, n)]


def explore(options: Mapping[str, Any], depth: int) -> Found:
    """Try all schedules up to a length (see the module)."""
    found, known = Found(), set[bytes]()
    coming: deque[tuple[Step, ...]] = deque([()])
    while coming:
        schedule = coming.popleft()
        world = World(options)
        for step in schedule:
            world.take(step)
        found.schedules += 1
        state = world.digest()
        if state in known:
            continue
        known.add(state)
        steps = list(world.steps()) if len(schedule) < depth else []
        broken = world.finish()
        if broken is not None:
            found.failures.append((schedule, broken))
        coming.extend((*schedule, step) for step in steps)
    found.states = len(known)
    return found
