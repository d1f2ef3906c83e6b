"""One entropy value (EV): its states, the EVs of one plane, and the interface of path policies.

The state machine is a table, `TRANSITIONS` [SPEC Fig 5, P1 §2.1]. The states are
`mrclab.hosts.rdma.events.EvState`.

Usually a queue pair takes its EVs in the order of the rotation (`mrclab.hosts.mrc.evs.ev_set`). A path policy
can choose the EV of each packet instead. The policy chooses among the EVs that MRC allows: an EV with a loss
is still retired, probed and restored, and a marked EV is still skipped once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final

from mypy_extensions import mypyc_attr

from mrclab.hosts.mrc.packets import FrameOptions, prefix
from mrclab.hosts.rdma.events import EvState
from mrclab.hosts.rdma.frames import Flow
from mrclab.hosts.rdma.paths import Path, PlanePaths


class EvInput(IntEnum):
    """The events that can change the state of an EV."""

    ACKED = 0
    ECN = 1
    TRIMMED = 2
    TRIMMED_LASTHOP = 3
    TURN_SKIPPED = 4
    LOST = 5
    ALWAYS_SKIP = 6
    PROBES_PASSED = 7
    PROBES_PASSED_MARKED = 8
    DENY = 9
    ALLOW = 10


def _table() -> dict[tuple[EvState, EvInput], EvState]:
    s, i = EvState, EvInput
    rows: dict[EvState, dict[EvInput, EvState]] = {
        s.UNKNOWN: {
            i.ACKED: s.GOOD,
            i.ECN: s.SKIP,
            i.TRIMMED: s.SKIP,
            i.LOST: s.ASSUMED_BAD,
            i.ALWAYS_SKIP: s.ASSUMED_BAD,
            i.PROBES_PASSED: s.GOOD,
            i.PROBES_PASSED_MARKED: s.SKIP,
            i.DENY: s.DENIED,
        },
        s.GOOD: {
            i.ECN: s.SKIP,
            i.TRIMMED: s.SKIP,
            i.LOST: s.ASSUMED_BAD,
            i.ALWAYS_SKIP: s.ASSUMED_BAD,
            i.PROBES_PASSED_MARKED: s.SKIP,
            i.DENY: s.DENIED,
        },
        s.SKIP: {
            i.TURN_SKIPPED: s.GOOD,
            i.LOST: s.ASSUMED_BAD,
            i.ALWAYS_SKIP: s.ASSUMED_BAD,
            i.DENY: s.DENIED,
        },
        s.ASSUMED_BAD: {i.PROBES_PASSED: s.GOOD, i.PROBES_PASSED_MARKED: s.SKIP, i.DENY: s.DENIED},
        s.DENIED: {i.ALLOW: s.UNKNOWN},
    }
    return {(state, event): rows[state].get(event, state) for state in s for event in i}


TRANSITIONS: Final[dict[tuple[EvState, EvInput], EvState]] = _table()
"""The state machine: it has a next state for every state and event."""


_FEW: Final = 16
"""Up to this number of EVs, insertion sort is used: it is faster for a small list."""
Heads = dict[int, tuple[bytes, int]]
"""The headers before the BTH for one path (see `packets.prefix`), by UDP length and traffic class."""
_MOST_PATHS: Final = 1 << 12
"""Largest number of paths in a `HeadCache`: 128 to each of 32 peers."""


class HeadCache:
    """The heads (the headers before the BTH) of the paths of a NIC. Queue pairs to one peer share them.

    New connections may bring new paths (`ev_mode` ecmp), so a full cache is cleared. EVs that already
    refer to heads continue to use these heads.
    """

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[tuple[bytes, bytes, bytes, bytes, Path], Heads] = {}

    def get(self, plane: PlanePaths, path: Path) -> Heads:
        """Return the heads of a path. All users of the path share them."""
        key = (plane.src_mac, plane.dst_mac, plane.src, plane.dst, path)
        found = self._heads.get(key)
        if found is None:
            if len(self._heads) >= _MOST_PATHS:
                self._heads.clear()
            found = self._heads[key] = {}
        return found


class Probing:
    """The probes of an EV that is ASSUMED_BAD."""

    __slots__ = ("due_ns", "passed", "unanswered", "wait_ns")

    def __init__(self, now_ns: int, wait_ns: int) -> None:
        self.wait_ns = wait_ns
        """Time between two probes, ns. If an answer may take longer, the next probe is sent later."""
        self.due_ns = now_ns + wait_ns
        self.unanswered: int | None = None
        """Id of the last probe if this probe is unanswered; else None."""
        self.passed = 0
        """Number of answered probes in a row."""


class Ev:
    """One entropy value towards one peer: its path, its state and its counters."""

    __slots__ = (
        "acked",
        "active",
        "ecn_marked",
        "failed_ns",
        "flow",
        "flow_tclass",
        "flows",
        "heads",
        "key",
        "lost",
        "other_flow",
        "other_tclass",
        "path",
        "plane",
        "port",
        "probing",
        "ready",
        "retired",
        "retired_ns",
        "sent",
        "skip_until_ns",
        "state",
        "trimmed",
        "value",
    )

    def __init__(self, plane: Plane, path: Path, heads: Heads) -> None:
        self.plane = plane
        self.port = plane.port
        self.path = path
        self.value = path.ev
        self.state = EvState.UNKNOWN
        self.active = False
        self.ready = False
        """True: the EV may be used now. This depends on `active`, `state` and the plane."""
        self.key = 0.0
        """Random number of this EV. The EVs of the present round are sorted by these numbers."""
        self.heads = heads
        self.flows: dict[int, Flow] | None = None
        """Flows of the packets by traffic class, if packets are objects."""
        self.flow: Flow | None = None
        """The last flow that was used, for the class `flow_tclass`."""
        self.flow_tclass = -1
        self.other_flow: Flow | None = None
        """The flow that was used before `flow`: data and answers have different classes."""
        self.other_tclass = -1
        self.sent = self.acked = self.lost = self.trimmed = self.ecn_marked = self.retired = 0
        self.failed_ns = 0
        self.retired_ns = -1
        """Time at which the EV was retired for a loss; -1: it is not retired."""
        self.skip_until_ns = 0
        self.probing: Probing | None = None
        """The probes of the EV while it is ASSUMED_BAD."""

    @property
    def doubt_ns(self) -> int:
        """The wait between probes of this EV, ns, doubled by each unanswered probe; 0: no probes."""
        return 0 if self.probing is None else self.probing.wait_ns

    @property
    def usable(self) -> bool:
        """True if the EV is neither ASSUMED_BAD nor DENIED."""
        state = self.state  # Three comparisons are faster than a tuple in compiled code.
        return state is EvState.GOOD or state is EvState.SKIP or state is EvState.UNKNOWN

    def head(self, options: FrameOptions, tclass: int, udp_length: int) -> tuple[bytes, int]:
        """Return the bytes and the ICRC start value of `packets.prefix` for this path, from a cache."""
        found = self.heads.get(udp_length << 8 | tclass)
        if found is None:
            if len(self.heads) >= 64:
                self.heads.clear()
            found = prefix(self.plane.paths, self.path, options, tclass, udp_length)
            self.heads[udp_length << 8 | tclass] = found
        return found


class Plane:
    """The EVs of one plane."""

    __slots__ = (
        "active",
        "cursor",
        "decks",
        "evs",
        "local_up",
        "order",
        "paths",
        "peer_up",
        "port",
        "quota",
        "repeats",
        "reverse",
        "reverse_ns",
        "spares",
        "waiting",
    )

    def __init__(self, paths: PlanePaths, rotation: str = "shuffled") -> None:
        self.paths = paths
        self.port = paths.port
        self.evs: list[Ev] = []
        self.active: list[Ev] = []
        self.spares: list[Ev] = []
        self.order: list[Ev] = []
        self.cursor = 0
        uplinks = {path.uplink for path in paths.paths}
        shared = rotation == "stratified" and None not in uplinks and len(uplinks) < len(paths.paths)
        self.decks: dict[int, list[Ev]] | None = {} if shared else None
        """For a stratified rotation: the EVs that wait for their turn, by uplink. Else None."""
        self.waiting: list[Ev] = []
        """EVs whose turn came while the port was busy. They are used next."""
        self.quota = 0
        self.repeats: dict[int, int] = {}
        """For each EV that the plane's paths contain more than once: how often they contain it."""
        self.reverse: Ev | None = None
        """EV of the last packet that the peer answered. Answers may use this EV."""
        self.reverse_ns = 0
        self.local_up = True
        self.peer_up = True

    def distinct_paths(self) -> Sequence[Path]:
        """Return each path once. A path that is in the plane's list n times gets n turns in each round."""
        paths = self.paths.paths
        distinct = tuple(dict.fromkeys(paths))
        if len(distinct) < len(paths):
            self.repeats = {path.ev: n for path, n in Counter(paths).items() if n > 1}
        return distinct

    @property
    def up(self) -> bool:
        """True if the ports of both ends in this plane are up."""
        return self.local_up and self.peer_up

    @property
    def usable(self) -> int:
        """Number of EVs that are neither ASSUMED_BAD nor DENIED."""
        return len(self.active) + len(self.spares)

    def skips_enough(self, cap: float) -> bool:
        """Return True if no more EVs may become SKIP.

        `cap` is the largest share of the active EVs that may be SKIP; 1 means no limit.
        """
        if cap >= 1.0:
            return False
        skipped = 0
        for ev in self.active:
            if ev.state is EvState.SKIP:
                skipped += 1
        return skipped + 1 > cap * len(self.active)

    def draw(self, random: Callable[[], float]) -> Ev:
        """Return the next active EV in the rotation, even if its state is SKIP. There must be an active EV.

        `random` returns the random numbers that set the order of the EVs in each round of the rotation.
        """
        while True:
            if self.waiting:
                ev = self.waiting.pop(0)
            else:
                if self.cursor >= len(self.order):
                    self.order = self._round(random)
                    self.cursor = 0
                ev = self.order[self.cursor]
                self.cursor += 1
            if ev.active:
                return ev

    def _round(self, random: Callable[[], float]) -> list[Ev]:
        """Return a new round in random order: all active EVs or, if stratified, one for each uplink."""
        if len(self.active) <= _FEW and not self.repeats:
            order = _shuffle(self.active, random)
        else:
            order = self.active.copy()
            for ev in self.active if self.repeats else ():
                order += [ev] * (self.repeats.get(ev.value, 1) - 1)
            order.sort(key=lambda _: random())
        if self.decks is None:
            return order
        hands: dict[int, list[Ev]] = {}
        for ev in order:
            assert ev.path.uplink is not None
            hands.setdefault(ev.path.uplink, []).append(ev)
        drawn: list[Ev] = []
        for uplink, hand in hands.items():
            deck = [ev for ev in self.decks.get(uplink, ()) if ev.active] or hand
            drawn.append(deck.pop())
            self.decks[uplink] = deck
        return drawn

    def candidates(self) -> list[Ev]:
        """Return the active EVs; if there are none, all EVs that are not DENIED."""
        return self.active or [ev for ev in self.evs if ev.state is not EvState.DENIED]


def _shuffle(evs: list[Ev], random: Callable[[], float]) -> list[Ev]:
    """Return EVs in random order: each EV gets a random number, and the EVs are sorted by these numbers."""
    made: list[Ev] = []
    for ev in evs:
        key = ev.key = random()
        at = len(made)
        while at > 0 and made[at - 1].key > key:
            at -= 1
        made.insert(at, ev)
    return made


@mypyc_attr(allow_interpreted_subclasses=True)
class PathPolicy:
    """The choice of each packet's EV. This base class chooses at random.

    To write your own policy, derive a class and name it in the option `path_policy`. Your class need not be
    compiled. Every queue pair has its own policy object. Use only `self.rng` for randomness, so that a run
    can be repeated.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def choose(self, now_ns: int, evs: Sequence[Ev]) -> Ev:
        """Return one of `evs`, the EVs that may be used now and whose port is free. `evs` is not empty."""
        return evs[int(self.rng.random() * len(evs))]

    def on_sack(self, now_ns: int, ev: Ev, marked: bool) -> None:
        """Record that a packet on this EV arrived, as a SACK reports. `marked`: the packet met congestion."""

    def on_trim(self, now_ns: int, ev: Ev) -> None:
        """Record that a switch with a full queue trimmed a packet on this EV."""

    def on_loss(self, now_ns: int, ev: Ev) -> None:
        """Record that a packet on this EV was lost. With `ev_health`, the EV is retired after this call."""
