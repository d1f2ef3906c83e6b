"""Random schedules of traffic and faults for two endpoints in memory, and the checks after each run.

A `Schedule` determines a whole run. If a run fails, Hypothesis searches for the smallest schedule that fails,
and prints it. The printed text can be pasted into a test.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from mrclab.hosts.mrc import MrcConfig, SpecReading
from mrclab.hosts.mrc.events import EvReplaced
from mrclab.hosts.mrc.wire import NackReason
from mrclab.hosts.rdma.events import EvState, QpError, Retransmitted, SendCompleted
from mrclab.hosts.transports import DEPLOYED
from tests.support.endpoint_state import active_per_plane, set_receiver_penalty, set_refusal
from tests.support.mrc_sim import Network, Sim, ev_value
from tests.support.random_writes import Overlaps, Writes

PLANES, PATHS = 3, 5
PATIENCE_NS = 120_000_000_000


class NearWrap(random.Random):
    """A random generator with which every QP starts 100 PSNs before the wrap."""

    def getrandbits(self, k: int) -> int:
        return (1 << 24) - 100 if k == 24 else super().getrandbits(k)

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        # The base class would draw a queue pair's number by `getrandbits`, which returns a PSN in this class.
        first, last = (0, start) if stop is None else (start, stop)
        return first + step * int(self.random() * -(-(last - first) // step))


@dataclass(frozen=True)
class Burst:
    """Messages that one end of a connection posts at once: their lengths, and which have immediate data."""

    at_ns: int
    connection: int
    source: int
    messages: tuple[tuple[int, bool], ...]


@dataclass(frozen=True)
class Action:
    """Something that happens to the network or to an end for a while (see `_actions`)."""

    kind: str
    at_ns: int
    lasts_ns: int
    end: int = 0
    plane: int = 0
    path: int = 0
    amount: int = 0


@dataclass(frozen=True)
class Schedule:
    """All events of a run."""

    seed: int
    connections: int
    wrap: bool
    bursts: tuple[Burst, ...]
    actions: tuple[Action, ...]
    network: dict[str, Any]
    config: dict[str, Any]
    batch: int = 32
    """The number of frames that an end returns at a time."""
    planes: int = PLANES
    paths: int = PATHS
    """The number of paths in each plane."""
    active_evs: int = 12


def _actions(sim: Sim, action: Action) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return the functions that begin and end an action."""
    net, end, ev = sim.network, sim.ends[action.end], ev_value(action.plane, action.path)
    every = [pair[action.end] for pair in sim.connections]

    def port(up: bool) -> None:
        (net.dead_planes.discard if up else net.dead_planes.add)(action.plane)
        end.set_port_state(action.plane, up, sim.now_ns)

    def refuse(reason: NackReason | None) -> None:
        for qpn in every:
            set_refusal(end, qpn, reason)

    def window(mpr: int) -> None:
        if end.config.dynamic_mpr:
            for qpn in every:
                end.set_mpr(qpn, min(mpr, end.config.mpr))

    def penalty(amount: int, restore: bool) -> None:
        for qpn in every:
            set_receiver_penalty(end, qpn, amount, restore=restore)

    def ask() -> None:
        known = [counters.ev for counters in end.ev_counters(every[0])]
        end.probe_ev(every[0], known[action.amount % len(known)], sim.now_ns)

    def stall() -> None:
        sim.paused_until[action.end] = max(sim.paused_until[action.end], sim.now_ns + action.lasts_ns)

    reasons = (NackReason.NO_BITMAP, NackReason.NO_PKT_BUFFER, NackReason.NO_RESOURCE)
    return {
        "path dead": (lambda: net.dead.add(ev), lambda: net.dead.discard(ev)),
        "plane dead": (
            lambda: net.dead_planes.add(action.plane),
            lambda: net.dead_planes.discard(action.plane),
        ),
        "port down": (lambda: port(False), lambda: port(True)),
        "delay": (
            lambda: net.path_delay_ns.__setitem__(ev, action.amount),
            lambda: void(net.path_delay_ns.pop(ev, None)),
        ),
        "rate": (
            lambda: net.path_rate_bps.__setitem__(ev, 20_000_000),
            lambda: void(net.path_rate_bps.pop(ev, None)),
        ),
        "stall": (stall, lambda: None),
        "refuse": (lambda: refuse(reasons[action.amount % 3]), lambda: refuse(None)),
        "deny": (lambda: end.deny([ev], sim.now_ns), lambda: end.allow([ev], sim.now_ns)),
        "narrow": (lambda: window(128), lambda: window(256)),
        "penalty": (lambda: penalty(action.amount % 128, False), lambda: penalty(0, True)),
        "ask": (ask, lambda: None),
    }[action.kind]


def void(_: object) -> None:
    """Do nothing with a value."""


ACTIONS = (
    "path dead",
    "plane dead",
    "port down",
    "delay",
    "rate",
    "stall",
    "refuse",
    "deny",
    "narrow",
    "penalty",
    "ask",
)


def _install(sim: Sim, actions: tuple[Action, ...]) -> None:
    """Schedule the actions. If two equal actions overlap, their effect lasts until the later action ends."""
    overlaps = Overlaps()
    start = sim.now_ns
    for action in actions:
        begin, finish = _actions(sim, action)
        where = {"plane dead": (action.plane,), "stall": (action.end,)}.get(
            action.kind, (action.end, action.plane, action.path)
        )
        if action.kind in ("refuse", "narrow", "penalty"):
            where = (action.end,)
        elif action.kind == "port down":
            where = (action.end, action.plane)
        elif action.kind in ("path dead", "delay", "rate"):
            where = (action.plane, action.path)
        begin, finish = overlaps.of((action.kind, *where), begin, finish)
        sim.at(start + action.at_ns, begin)
        sim.at(start + action.at_ns + action.lasts_ns, finish)


class Transfer:
    """All messages that one end writes over one connection."""

    def __init__(self, sim: Sim, connection: int, source: int, bursts: list[Burst]) -> None:
        self._sim, self._source = sim, source
        near, far = sim.ends[source], sim.ends[1 - source]
        pair = sim.connections[connection]
        self._qpn = pair[source]
        self._writes = Writes(near, self._qpn, far, pair[1 - source], bursts, sim.rng.randbytes)
        self._looked_at = self._completed = 0
        for at_ns, post in self._writes.posters():
            sim.at(sim.now_ns + at_ns, post)

    def done(self) -> bool:
        """Return whether every message has completed. Read only the events since the last call."""
        events = self._sim.events[self._source]
        for at in range(self._looked_at, len(events)):
            event = events[at]
            self._completed += isinstance(event, SendCompleted) and event.qpn == self._qpn
        self._looked_at = len(events)
        return self._completed >= len(self._writes.messages)

    def check(self) -> None:
        """Check what must be true after any run without a QP error."""
        self._writes.check(self._sim.events[self._source], self._sim.events[1 - self._source])


def check_evs(sim: Sim, end: int, qpn: int, *, may_repeat: bool) -> None:
    """Check a queue pair's EVs.

    A replacement of an EV must be in the same plane, and a retransmission must use another EV. The numbers of
    EVs of the usable planes may differ by at most one.
    """
    for event in (e for e in sim.of(end, Retransmitted) if e.qpn == qpn):
        assert may_repeat or event.old_ev != event.new_ev
    for event in (e for e in sim.of(end, EvReplaced) if e.qpn == qpn):
        assert event.ev >> 16 == event.new_ev >> 16
    active = active_per_plane(sim.ends[end], qpn)
    states = defaultdict(list)
    for ev in sim.ends[end].ev_counters(qpn):
        states[ev.plane].append(ev.state)
    up = {p.plane for p in sim.ends[end].plane_counters(qpn) if p.local_up and p.peer_up}
    serving = [
        n for plane, n in active.items() if plane in up and any(s <= EvState.SKIP for s in states[plane])
    ]
    assert not serving or max(serving) - min(serving) <= 1


def run(schedule: Schedule) -> Sim:
    """Run a schedule, check it, and return the simulation.

    Retries never end: a receiver may refuse packets for 200 ms, and each refusal counts as a retry.
    """
    sim = Sim(
        seed=schedule.seed,
        planes=schedule.planes,
        paths=schedule.paths,
        config=MrcConfig(max_active_evs=schedule.active_evs, ack_ladder="endless", **schedule.config),
        network=Network(**schedule.network),
        rng_class=NearWrap if schedule.wrap else random.Random,
        qps=schedule.connections,
        batch=schedule.batch,
    )
    by_way: dict[tuple[int, int], list[Burst]] = defaultdict(list)
    for burst in sorted(schedule.bursts, key=lambda b: b.at_ns):
        by_way[burst.connection % schedule.connections, burst.source].append(burst)
    transfers = [Transfer(sim, *way, bursts) for way, bursts in by_way.items()]
    _install(sim, schedule.actions)
    end_ns = sim.now_ns + max([a.at_ns + a.lasts_ns for a in schedule.actions], default=0)
    sim.run(PATIENCE_NS, until=lambda: all(t.done() for t in transfers))
    sim.run(max(0, end_ns - sim.now_ns) + 50_000_000)
    assert not sim.of(0, QpError) + sim.of(1, QpError)
    for transfer in transfers:
        transfer.check()
    # If ports or planes are down, only one path may be left for a retransmission.
    lonely = any(a.kind in ("port down", "plane dead", "deny") for a in schedule.actions)
    for pair in sim.connections:
        for end in (0, 1):
            check_evs(sim, end, pair[end], may_repeat=lonely)
    return sim


SMALL = st.sampled_from([0.0, 0.0, 0.01, 0.05, 0.15])
LENGTHS = st.sampled_from([0, 1, 3, 4, 100, 4095, 4096, 4097, 8192, 20_000, 70_001])

NETWORKS = st.fixed_dictionaries(
    {
        "loss": SMALL,
        "duplicate": SMALL,
        "corrupt": SMALL,
        "ce": SMALL,
        "trim": SMALL,
        "trim_last_hop": SMALL,
        "control_loss": SMALL,
        "jitter_ns": st.sampled_from([0, 5_000, 60_000, 300_000]),
        "port_rate_bps": st.sampled_from([0, 0, 200_000_000]),
    }
)
CONFIGS = st.fixed_dictionaries(
    {
        "congestion": st.sampled_from(["fixed", "fixed", "nscc"]),
        "rate_bps": st.sampled_from([0, 0, 50_000_000, 1_000_000_000]),
        "cwnd_bytes": st.sampled_from([4096, 10 * 4096, 64 * 4096]),
        "spare_evs_per_plane": st.integers(0, 2),
        "sack_coalesce": st.sampled_from([1, 4, 16]),
        "timestamps": st.booleans(),
        "trim": st.booleans(),
        "imm_waits_for_earlier": st.booleans(),
        "transport_ack": st.booleans(),
        "dynamic_mpr": st.booleans(),
        "reverse_evs": st.sampled_from(["mirror", "set"]),
        "max_wimm": st.sampled_from([1, 4, 32]),
        "mpr": st.sampled_from([128, 1024]),
        "ev_min_active": st.sampled_from([0, 3]),
        "always_skip_after": st.sampled_from([0, 3]),
        "skip_cap": st.sampled_from([1.0, 0.25]),
        "sack_threshold_bytes": st.sampled_from([1, 8192, 40_000]),
        "reading": st.builds(
            SpecReading,
            skip_ns=st.sampled_from([0, 50_000]),
            oor_nack=st.booleans(),
            service_time=st.booleans(),
            udp_port=st.sampled_from([4791, 4971]),
        ),
        "probe_interval_ns": st.sampled_from([500_000, 10_000_000]),
    }
)
ALWAYS = {name: value for name, value in DEPLOYED.items() if name != "max_active_evs"}
TIMES = st.one_of(st.just(0), st.integers(0, 2_000_000), st.integers(0, 40_000_000))
BURSTS = st.builds(
    Burst,
    at_ns=TIMES,
    connection=st.integers(0, 2),
    source=st.integers(0, 1),
    messages=st.lists(st.tuples(LENGTHS, st.booleans()), min_size=1, max_size=20).map(tuple),
)


def _actions_on(planes: int, paths: int) -> st.SearchStrategy[Action]:
    """Draw actions on a network with this many planes, and this many paths in each."""
    return st.builds(
        Action,
        kind=st.sampled_from(ACTIONS),
        at_ns=TIMES,
        lasts_ns=st.sampled_from([20_000, 300_000, 3_000_000, 30_000_000, 200_000_000]),
        end=st.integers(0, 1),
        plane=st.integers(0, planes - 1),
        path=st.integers(0, paths - 1),
        amount=st.integers(0, 1_000_000),
    )


def _schedules(
    configs: st.SearchStrategy[dict[str, Any]], planes: int, paths: int, active_evs: int
) -> st.SearchStrategy[Schedule]:
    """Draw schedules on a network with this many planes, paths in each plane, and EVs in use."""
    return st.builds(
        Schedule,
        seed=st.integers(0, 1 << 32),
        connections=st.integers(1, 3),
        wrap=st.booleans(),
        bursts=st.lists(BURSTS, min_size=1, max_size=6).map(tuple),
        actions=st.lists(_actions_on(planes, paths), max_size=8).map(tuple),
        network=NETWORKS,
        config=configs,
        batch=st.sampled_from((1, 32)),
        planes=st.just(planes),
        paths=st.just(paths),
        active_evs=st.just(active_evs),
    )


SCHEDULES = _schedules(CONFIGS, PLANES, PATHS, active_evs=12)

DEPLOYED_SCHEDULES = _schedules(
    CONFIGS.map(lambda config: {**config, **ALWAYS}),
    planes=4,
    paths=40,
    active_evs=DEPLOYED["max_active_evs"],
)
"""Schedules on a fabric that has paths for the 128 EVs and 32 backups of `DEPLOYED`, with its options."""
