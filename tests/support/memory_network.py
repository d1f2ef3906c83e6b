"""A network for ranks that all run in one process. Its channels deliver in random order."""

import random
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrclab.hosts.collectives.channel import Arrived, ChannelEvent, Done
from mrclab.hosts.collectives.communicator import Communicator, Steps, Wait

LIMIT = 200_000
MOST_AT_ONCE = 1000


@dataclass
class Put:
    src: int
    dst: int
    region: int
    offset: int
    data: memoryview
    tag: int
    ticket: int
    placed: bool = False


class MemoryNetwork:
    """A network that delivers puts one at a time, in an order drawn from the seed.

    The bytes of a put are read from the sender's memory when the put is delivered. So the data is wrong if an
    algorithm changes the bytes too early. Puts to a rank in ``dead`` fail.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ns = 0
        self.puts: list[Put] = []
        self.channels = [MemoryChannel(self, rank) for rank in range(size)]
        self.dead: set[int] = set()

    def move(self) -> bool:
        """Deliver a put, or report a delivered put to its sender. Return False if there are no puts."""
        if not self.puts:
            return False
        put = self.rng.choice(self.puts)
        if put.dst in self.dead:
            self.puts.remove(put)
            self.channels[put.src].ready.append(Done(put.dst, put.ticket, self.now_ns, "peer is dead"))
        elif not put.placed:
            region = self.channels[put.dst].regions[put.region]
            region[put.offset : put.offset + len(put.data)] = put.data
            self.channels[put.dst].placed += len(put.data)
            self.channels[put.dst].ready.append(Arrived(put.src, put.tag, len(put.data), self.now_ns))
            put.placed = True
        else:
            self.puts.remove(put)
            self.channels[put.src].ready.append(Done(put.dst, put.ticket, self.now_ns))
        return True


class MemoryChannel:
    def __init__(self, network: MemoryNetwork, rank: int) -> None:
        self.network = network
        self.rank = rank
        self.regions: list[memoryview] = []
        self.ready: deque[ChannelEvent] = deque()
        self.tickets = 0
        self.placed = 0

    def expose(self, buffer: memoryview) -> int:
        self.regions.append(buffer)
        return len(self.regions) - 1

    def attributes(self, peer: int) -> dict[str, Any]:
        return {}

    def connect(self, peer: int, attributes: dict[str, Any]) -> None:
        pass

    def put(self, peer: int, region: int, offset: int, data: memoryview, tag: int) -> int:
        assert peer != self.rank
        self.tickets += 1
        self.network.puts.append(Put(self.rank, peer, region, offset, data, tag, self.tickets))
        return self.tickets

    def turn(self, until_ns: int | None, others: Collection[int] = ()) -> Collection[int]:
        return ()

    def events(self) -> list[ChannelEvent]:
        found = list(self.ready)
        self.ready.clear()
        return found

    def bytes_delivered(self) -> int:
        return self.placed

    def counters(self) -> dict[str, int]:
        return {}

    def event_columns(self) -> dict[str, list[int]]:
        return {}

    def news(self, paths_to: int | None) -> dict[str, Any]:
        return {"placed": {}, "events": [], "paths": []}

    def deny(self, links: Collection[str]) -> None:
        pass

    def save_log(self, path: Path) -> int:
        return 0

    def close(self) -> None:
        pass


def communicators(size: int, seed: int) -> tuple[MemoryNetwork, list[Communicator]]:
    network = MemoryNetwork(size, seed)
    clock: Callable[[], int] = lambda: network.now_ns  # noqa: E731
    return network, [
        Communicator(channel, rank, size, clock) for rank, channel in enumerate(network.channels)
    ]


def drive(network: MemoryNetwork, comms: list[Communicator], algorithms: Iterable[Steps[None]]) -> None:
    """Run every rank's algorithm to its end. The network's seed decides which rank makes the next step."""
    running: dict[int, tuple[Steps[None], Wait]] = {
        rank: (steps, Wait(lambda: True)) for rank, steps in enumerate(algorithms)
    }
    for _ in range(LIMIT):
        if not running:
            return
        moved = network.move()
        ranks = list(running)
        network.rng.shuffle(ranks)
        progress = moved
        for rank in ranks:
            for event in comms[rank].channel.events():
                progress = True
                comms[rank].take(event)
            steps, wait = running[rank]
            for spin in range(MOST_AT_ONCE):
                if not wait.ready() and (wait.until_ns is None or network.now_ns < wait.until_ns):
                    break
                progress = True
                assert spin < MOST_AT_ONCE - 1, f"rank {rank} continues without letting the channel work"
                try:
                    wait = next(steps)
                    running[rank] = steps, wait
                except StopIteration:
                    del running[rank]
                    break
        if not progress:
            dues = [wait.until_ns for _, wait in running.values() if wait.until_ns is not None]
            assert dues, f"ranks {sorted(running)} wait for ever"
            network.now_ns = max(network.now_ns + 1, min(dues))
        else:
            network.now_ns += 1000
    raise AssertionError(f"not over after {LIMIT} steps")
