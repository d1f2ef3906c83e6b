"""Random schedules in which queue pairs are destroyed and an end is started again, on either side.

Queue pairs whose both ends live must not notice. One whose peer is gone must end by itself, and give back its
share of the window.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mrclab.hosts.mrc import Endpoint, MrcConfig
from mrclab.hosts.mrc.config import ENDLESS_RETRIES
from mrclab.hosts.rdma.events import SendCompleted, Status
from mrclab.hosts.transports import DEPLOYED
from tests.support.mrc_sim import Network, Sim, port_addresses, remote_paths

PLANES, PATHS = 3, 5
PATIENCE_NS = 60_000_000_000
_LENGTHS = (0, 1, 100, 4097, 20_000, 70_001, 300_000)


@dataclass(frozen=True)
class End:
    """A queue pair that is destroyed, or with `restart` its whole end, with all that it holds."""

    at_ns: int
    connection: int
    side: int
    restart: bool = False


@dataclass(frozen=True)
class EndedSchedule:
    """All of a run."""

    seed: int
    connections: int
    bursts: tuple[tuple[int, int, int, tuple[int, ...]], ...]
    """Time, connection, sending side, lengths of the messages."""
    ends: tuple[End, ...]
    network: dict[str, Any]
    config: dict[str, Any]


def draw(seed: int) -> EndedSchedule:
    """Return the schedule of a seed."""
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
    return EndedSchedule(seed, connections, bursts, ends, network, config)


class _Run:
    """A schedule as it happens."""

    def __init__(self, schedule: EndedSchedule) -> None:
        self.config = MrcConfig(**schedule.config)
        self.sim = sim = Sim(
            seed=schedule.seed,
            planes=PLANES,
            paths=PATHS,
            config=self.config,
            network=Network(**schedule.network),
            qps=schedule.connections,
        )
        self.pairs = [list(pair) for pair in sim.connections]
        self.posted: dict[tuple[int, int], int] = {}
        """Messages by side and queue pair."""
        self.endless = self.config.ack_times()[2] == ENDLESS_RETRIES
        """A queue pair whose peer is gone tries for ever."""
        self.gone: set[int] = set()
        """Connections of which an end was destroyed."""
        self._regions = [end.register_memory(bytearray(1 << 20)) for end in sim.ends]
        start = sim.now_ns
        for at_ns, connection, side, lengths in schedule.bursts:
            sim.at(start + at_ns, self._poster(connection, side, lengths))
        for end in schedule.ends:
            sim.at(start + end.at_ns, self._ender(end))
        self.last_ns = start + max(
            max(at_ns for at_ns, *_ in schedule.bursts), max(end.at_ns for end in schedule.ends)
        )

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
                    self.sim.ends[end.side].destroy_qp(qpn)
                    self.posted.pop((end.side, qpn), None)
            if end.restart:
                self._restart(end.side)

        return destroy

    def _restart(self, side: int) -> None:
        """Put another endpoint in an end's place, with a new queue pair that both ends use at once."""
        sim = self.sim
        sim.ends[side] = Endpoint(
            port_addresses(side, PLANES), self.config, random.Random(sim.rng.getrandbits(64))
        )
        sim.ends[side].now_ns = sim.now_ns
        self._regions[side] = sim.ends[side].register_memory(bytearray(1 << 20))
        pair = [end.create_qp() for end in sim.ends]
        for me in (0, 1):
            remote = sim.ends[1 - me].local_attributes(pair[1 - me])
            sim.ends[me].connect(pair[me], remote, remote_paths(me, 1 - me, PLANES, PATHS))
        self.pairs.append(pair)
        for me in (0, 1):
            self._poster(len(self.pairs) - 1, me, (70_001, 300_000))()

    def outcomes(self, side: int, qpn: int) -> list[SendCompleted]:
        return [e for e in self.sim.events[side] if isinstance(e, SendCompleted) and e.qpn == qpn]

    def done(self) -> bool:
        # A write may complete by a transport ACK before the SACK of its last packet comes.
        return self.sim.now_ns > self.last_ns and all(
            qp.requester.idle and not qp.requester.board.inflight_packets
            for end in self.sim.ends
            for qp in end.qps.values()
            if not (self.endless and self.connection_of(qp.qpn) in self.gone)
        )

    def connection_of(self, qpn: int) -> int:
        return next(n for n, pair in enumerate(self.pairs) if qpn in pair)

    def check(self) -> None:
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
    """Run a schedule, check it, and return its outcome."""
    happening = _Run(schedule)
    happening.sim.run(PATIENCE_NS, until=happening.done)
    happening.check()
    return happening.sim
