"""A simulated fabric for Clustermapper's probes: links lose probes, CPUs stall, and bad links are named."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

from mrclab.hosts.clustermapper.inference import Cleared, Mapper, MapperConfig, MapperEvent, Verdict
from mrclab.hosts.clustermapper.probes import ID_OFFSET, ProbePlan
from mrclab.topologies import Fabric

MS = 1_000_000


class ProbedFabric:
    """A fabric with given losses and delays of probes. It records Clustermapper's events."""

    def __init__(
        self,
        fabric: Fabric,
        seed: int = 1,
        config: MapperConfig | None = None,
        draw_id: Callable[[], int] | None = None,
    ) -> None:
        self.fabric = fabric
        self.plan = ProbePlan(fabric)
        self.mapper = Mapper(self.plan, config, draw_id)
        self.rng = random.Random(seed)
        self.now = 1_000 * MS
        self.loss: dict[str, float] = {}  # by link, the probability that a crossing probe is lost
        self.delay: Callable[[int], int] = lambda now: 0
        self.events: list[MapperEvent] = []
        self._number = 0
        self._arrivals: list[tuple[int, int]] = []

    def break_node(self, node: str, loss: float = 1.0) -> None:
        for link in self.plan.links:
            if node in link.split(":") or f"{node}-" in link.split(":")[1]:
                self.loss[link] = loss

    def run(self, duration_ms: int, interval_ms: int = 1) -> list[MapperEvent]:
        """Simulate this duration and return Clustermapper's new events."""
        start = len(self.events)
        for _ in range(duration_ms // interval_ms):
            routes = self.plan.round(self._number, self.mapper.suspects(self.now))
            self._number += 1
            for route, frame in self.mapper.send(routes, self.now):
                if any(self.rng.random() < self.loss.get(link, 0.0) for link in route.links):
                    continue
                rtt = self.rng.randrange(50_000, 300_000) + self.delay(self.now)
                number = int.from_bytes(frame[ID_OFFSET : ID_OFFSET + 8], "big")
                heapq.heappush(self._arrivals, (self.now + rtt, number))
            self.now += interval_ms * MS
            while self._arrivals and self._arrivals[0][0] <= self.now:
                self.mapper.received(heapq.heappop(self._arrivals)[1], self.now)
            self.events += self.mapper.judge(self.now)
        return self.events[start:]

    @property
    def named(self) -> list[str]:
        return [event.place for event in self.events if isinstance(event, Verdict)]

    @property
    def cleared(self) -> list[str]:
        return [event.place for event in self.events if isinstance(event, Cleared)]
