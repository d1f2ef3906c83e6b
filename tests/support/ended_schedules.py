"""Random schedules that destroy queue pairs, restart endpoints, and change profiles, on either side.

A queue pair whose peer still exists must not be affected. A queue pair whose peer is gone must fail and give
back its share of the window. While a profile denies an EV, queue pairs with this profile send no data on it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from mrclab.hosts.mrc import Endpoint, MrcConfig
from mrclab.hosts.mrc.config import ENDLESS_RETRIES
from mrclab.hosts.mrc.evs.ev_modes import EvEntry, EvMode
from mrclab.hosts.mrc.profiles.nic_profiles import NicProfiles
from mrclab.hosts.mrc.profiles.profile import NSCC, EvStates, ProfileError
from mrclab.hosts.rdma.events import SendCompleted, Status
from mrclab.hosts.transports import DEPLOYED
from tests.support.mrc_sim import Network, Sim, ev_value, port_addresses, remote_paths

PLANES, PATHS = 3, 5
PATIENCE_NS = 60_000_000_000
EVS, CC_OFF, CC_NSCC = 7, 1, 2
"""The numbers of the profiles at each end."""
_LENGTHS = (0, 1, 100, 4097, 20_000, 70_001, 300_000)


@dataclass(frozen=True)
class End:
    """Destroys a queue pair. With `restart`, replaces its whole endpoint by a new endpoint."""

    at_ns: int
    connection: int
    side: int
    restart: bool = False


@dataclass(frozen=True)
class Change:
    """A controller's temporary denial of a path, or of all paths of a plane, in an endpoint's profile."""

    at_ns: int
    lasts_ns: int
    side: int
    plane: int
    path: int | None
    """The denied path, or None for all paths of the plane."""

    def entries(self) -> list[EvEntry]:
        """Return the denied EVs with their port."""
        paths = range(PATHS) if self.path is None else (self.path,)
        return [EvEntry(ev_value(self.plane, path), self.plane + 1) for path in paths]


@dataclass(frozen=True)
class EndedSchedule:
    """All events of a run."""

    seed: int
    connections: int
    bursts: tuple[tuple[int, int, int, tuple[int, ...]], ...]
    """For each burst: the time, the connection, the sending side and the lengths of the messages."""
    ends: tuple[End, ...]
    network: dict[str, Any]
    config: dict[str, Any]
    changes: tuple[Change, ...] = ()
    cc_profile: int | None = None
    """The number of the CC profile for connections with profiles. None: the end's own congestion control."""


def draw(seed: int) -> EndedSchedule:
    """Return the schedule that belongs to a seed."""
    rng = random.Random(f"ended {seed}")
    connections = rng.randint(2, 4)
    bursts = tuple(
        (
            rng.choice((0, rng.randrange(2_000_000), rng.randrange(40_000_000))),
            rng.randrange(connections),
            rng.randrange(2),
            tuple(rng.choice(_LENGTHS) for _ in range(rng.randint(1, 8))),
        )
        for _ in range(rng.randint(2, 8))
    )
    ends = tuple(
        End(rng.randrange(5_000_000), rng.randrange(connections), rng.randrange(2), rng.random() < 0.2)
        for _ in range(rng.randint(1, 2))
    )
    few = (0.0, 0.0, 0.01, 0.05)
    network = {
        "loss": rng.choice(few),
        "duplicate": rng.choice(few),
        "ce": rng.choice(few),
        "trim": rng.choice(few),
        "control_loss": rng.choice(few),
        "jitter_ns": rng.choice((0, 5_000, 60_000)),
        "port_rate_bps": rng.choice((0, 1_000_000_000, 200_000_000)),
    }
    config = {
        **(rng.choice(({}, {"congestion": "nscc"}, dict(DEPLOYED)))),
        "max_active_evs": 12,
        "rate_bps": rng.choice((0, 0, 100_000_000)),
        "cwnd_bytes": rng.choice((4096, 64 * 4096)),
        "exponential_retries": rng.choice((6, ENDLESS_RETRIES)),
    }
    changes = tuple(
        Change(
            rng.randrange(5_000_000),
            rng.choice((20_000, 500_000, 30_000_000)),
            rng.randrange(2),
            # At least one EV of the last plane is never denied.
            plane := rng.randrange(PLANES),
            rng.randrange(PATHS - 1) if plane == PLANES - 1 else rng.choice((None, rng.randrange(PATHS))),
        )
        for _ in range(rng.randint(0, 4))
    )
    return EndedSchedule(
        seed, connections, bursts, ends, network, config, changes, rng.choice((None, CC_OFF, CC_NSCC))
    )


class _Run:
    """A run of a schedule."""

    def __init__(self, schedule: EndedSchedule) -> None:
        self.config = MrcConfig(**schedule.config)
        self.sim = sim = Sim(
            seed=schedule.seed,
            planes=PLANES,
            paths=PATHS,
            config=self.config,
            network=Network(**schedule.network),
        )
        self._cc = schedule.cc_profile
        self._profiles = [self._made_profiles(end) for end in sim.ends]
        self.pairs = [list(pair) for pair in sim.connections]
        """The first connection has no profile; the others have profiles."""
        for _ in range(schedule.connections - 1):
            self._join()
        self._sent: list[dict[tuple[int, int], int]] = [{}, {}]
        """For each end: how many packets a queue pair had sent on an EV when the EV was denied."""
        self.posted: dict[tuple[int, int], int] = {}
        """The number of posted messages, by side and queue pair."""
        self.endless = self.config.ack_times()[2] == ENDLESS_RETRIES
        """True if a queue pair retries without end after its peer is gone."""
        self.gone: set[int] = set()
        """The connections of which an end was destroyed."""
        self._regions = [end.register_memory(bytearray(1 << 20)) for end in sim.ends]
        start = sim.now_ns
        for at_ns, connection, side, lengths in schedule.bursts:
            sim.at(start + at_ns, self._poster(connection, side, lengths))
        for end in schedule.ends:
            sim.at(start + end.at_ns, self._ender(end))
        for change in schedule.changes:
            sim.at(start + change.at_ns, self._changer(change, EvStates.DENIED))
            sim.at(start + change.at_ns + change.lasts_ns, self._changer(change, EvStates.GOOD))
        self.last_ns = start + max(
            max(at_ns for at_ns, *_ in schedule.bursts),
            max(end.at_ns for end in schedule.ends),
            max((change.at_ns + change.lasts_ns for change in schedule.changes), default=0),
        )

    def _made_profiles(self, end: Endpoint) -> NicProfiles:
        made = NicProfiles(end)
        evs = made.create_evs(EVS)
        evs.configure(EvMode.AUTO, PATHS)
        evs.put_online()
        for number, algorithm in ((CC_OFF, None), (CC_NSCC, NSCC)):
            cc = made.create_cc(number)
            cc.configure(algorithm, base=self.config.nscc)
            cc.go_online()
        return made

    def _join(self) -> None:
        """Connect a queue pair at each end, with profiles of that end."""
        sim = self.sim
        pair = [end.create_qp() for end in sim.ends]
        for me in (0, 1):
            remote = sim.ends[1 - me].local_attributes(pair[1 - me])
            paths = remote_paths(me, 1 - me, PLANES, PATHS)
            self._profiles[me].connect(pair[me], remote, paths, EVS, self._cc)
        self.pairs.append(pair)

    def _poster(self, connection: int, side: int, lengths: tuple[int, ...]) -> Callable[[], None]:
        def post() -> None:
            qpn = self.pairs[connection][side]
            end, region = self.sim.ends[side], self._regions[1 - side]
            if qpn not in end.qps:
                return
            for length in lengths:
                number = self.posted.get((side, qpn), 0)
                end.post_write(
                    qpn, number, bytes(length), region.address, region.rkey, now_ns=self.sim.now_ns
                )
                self.posted[side, qpn] = number + 1

        return post

    def _ender(self, end: End) -> Callable[[], None]:
        def destroy() -> None:
            for connection in range(len(self.pairs)) if end.restart else [end.connection]:
                qpn = self.pairs[connection][end.side]
                if qpn in self.sim.ends[end.side].qps:
                    self.gone.add(connection)
                    self._profiles[end.side].forget(qpn)
                    self.sim.ends[end.side].destroy_qp(qpn)
                    self.posted.pop((end.side, qpn), None)
            if end.restart:
                self._restart(end.side)

        return destroy

    def _restart(self, side: int) -> None:
        """Replace an end by a new endpoint, and connect a new queue pair to it at once."""
        sim = self.sim
        sim.ends[side] = Endpoint(
            port_addresses(side, PLANES), self.config, random.Random(sim.rng.getrandbits(64))
        )
        sim.ends[side].now_ns = sim.now_ns
        self._regions[side] = sim.ends[side].register_memory(bytearray(1 << 20))
        self._profiles[side] = self._made_profiles(sim.ends[side])
        self._sent[side] = {}
        self._join()
        for me in (0, 1):
            self._poster(len(self.pairs) - 1, me, (70_001, 300_000))()

    def _changer(self, change: Change, state: EvStates) -> Callable[[], None]:
        def set_states() -> None:
            profiles = self._profiles[change.side]
            profiles.set_time(self.sim.now_ns)
            evs = profiles.evs[EVS]
            if evs.users:
                with pytest.raises(ProfileError, match="EBUSY"):
                    evs.go_offline()
            self._check_denied(change.side)
            known = set(evs.entries)
            wanted = [(entry, state) for entry in change.entries() if entry in known]
            assert evs.set_states(wanted).done == len(wanted)
            self._sent[change.side] = self._sent_on_denied(change.side)

        return set_states

    def _sent_on_denied(self, side: int) -> dict[tuple[int, int], int]:
        evs = self._profiles[side].evs[EVS]
        denied = {entry.ev for entry in evs.denied}
        return {
            (qpn, counters.ev): counters.sent
            for _, qpn in evs.users
            for counters in self.sim.ends[side].ev_counters(qpn)
            if counters.ev in denied
        }

    def _check_denied(self, side: int) -> None:
        for key, sent in self._sent_on_denied(side).items():
            assert sent == self._sent[side].get(key, 0), f"a denied EV was used: {key}"

    def outcomes(self, side: int, qpn: int) -> list[SendCompleted]:
        return [e for e in self.sim.events[side] if isinstance(e, SendCompleted) and e.qpn == qpn]

    def done(self) -> bool:
        # A write may complete by a transport ACK before the SACK of its last packet arrives.
        return self.sim.now_ns > self.last_ns and all(
            qp.requester.idle and not qp.requester.board.inflight_packets
            for end in self.sim.ends
            for qp in end.qps.values()
            if not (self.endless and self.connection_of(qp.qpn) in self.gone)
        )

    def connection_of(self, qpn: int) -> int:
        return next(n for n, pair in enumerate(self.pairs) if qpn in pair)

    def check(self) -> None:
        for side in (0, 1):
            self._check_denied(side)
        for (side, qpn), posted in self.posted.items():
            gone = self.connection_of(qpn) in self.gone
            if gone and self.endless:
                continue
            outcomes = self.outcomes(side, qpn)
            assert [e.wr_id for e in outcomes] == list(range(posted)), "each ends once and in order"
            statuses = [e.status for e in outcomes]
            if not gone:
                assert set(statuses) == {Status.SUCCESS}, "both ends live"
                continue
            failed = [status for status in statuses if status is not Status.SUCCESS]
            assert statuses == [Status.SUCCESS] * (posted - len(failed)) + failed
            assert all(status is Status.FLUSHED for status in failed[1:])
        for end in [] if self.endless and self.gone else self.sim.ends:
            for controller, sharing in end._windows.shared.values():
                assert controller.inflight_bytes == 0, "nothing keeps a share of the window"
                assert not sharing.waiting


def run(schedule: EndedSchedule) -> Sim:
    """Run a schedule, check it, and return the simulation."""
    happening = _Run(schedule)
    happening.sim.run(PATIENCE_NS, until=happening.done)
    happening.check()
    return happening.sim
