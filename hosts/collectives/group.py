"""Ranks of a user's program. The ranks sum arrays and send messages over the fabric while they compute.

A separate thread runs the NIC. So the NIC also works while the program's threads run NumPy or PyTorch code,
because such code releases Python's lock.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from mrclab.hosts.collectives.channel import Channel, Turn
from mrclab.hosts.collectives.collective_operations import DATA, Array, all_reduce, expose_for_collectives
from mrclab.hosts.collectives.communicator import Communicator, Steps, Wait
from mrclab.hosts.collectives.point_to_point import FIRST_TAG, PointToPoint
from mrclab.hosts.collectives.verbs_channel import open_channels
from mrclab.hosts.transports import find_transport
from mrclab.linux import namespaces
from mrclab.topologies import Fabric

T = TypeVar("T")
CAPACITY_BYTES = 1 << 22


class Store(Protocol):
    """A store through which ranks exchange attributes, for instance a `torch.distributed.Store`."""

    def set(self, key: str, value: str, /) -> None:
        """Store a value under a key."""

    def get(self, key: str, /) -> bytes:
        """Wait until there is a value under a key, and return it."""


class GroupError(RuntimeError):
    """The group has failed or was closed: no further all-reduces or messages are possible."""


class Group:
    """One rank of a program's group. All ranks must sum arrays of equal lengths in the same order.

    The end of the ``with`` block waits until all ranks have reached this end, because a peer may still need
    an answer from this rank. After an exception, the block ends without this wait.
    """

    def __init__(
        self, channel: Channel, turn: Turn, rank: int, size: int, capacity_bytes: int = CAPACITY_BYTES
    ) -> None:
        """Use a channel that is not connected yet. Arrays above ``capacity_bytes`` are summed in pieces."""
        self.rank = rank
        self.size = size
        self._channel = channel
        self._turn = turn
        self._capacity_bytes = capacity_bytes
        self._comm = Communicator(channel, rank, size, end_of_tags=FIRST_TAG)
        expose_for_collectives(self._comm, capacity_bytes, np.dtype(np.uint8), scratch=True)
        self._messages = PointToPoint(self._comm)
        self._store: Store | None = None
        self._name = ""
        self._lock = threading.Lock()
        self._tasks: deque[tuple[Array, Future[None]]] = deque()
        self._requests: deque[tuple[Callable[[], None], Future[Any]]] = deque()
        """Sends and receives that the thread has not started yet."""
        self._pending: set[Future[Any]] = set()
        self._problem: Exception | None = None
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._work, name=f"mrclab-nic-{rank}", daemon=True)

    @classmethod
    def open(
        cls,
        fabric: Fabric,
        namespace: str,
        host: str,
        rank: int,
        size: int,
        store: Store,
        *,
        transport: str = "mrc",
        options: Mapping[str, Any] | None = None,
        capacity_bytes: int = CAPACITY_BYTES,
        name: str = "mrclab",
        seed: int = 0,
    ) -> Group:
        """Open a host's NIC in its namespace, and connect to all other ranks.

        The program itself stays in its namespace. ``transport`` is a name of `mrclab.hosts.transports`;
        ``options`` override options of that transport. Groups that share a store need different values of
        ``name``. Groups on one host need different values of ``seed``. Raise ValueError for a transport that
        does not exist, TypeError or ValueError for a bad option, OSError or MachineError if the namespace or
        the NIC cannot be opened, and the store's own errors.
        """
        chosen = find_transport(transport)
        with namespaces.inside(namespace):
            (channel,), turn = open_channels(
                chosen.kind, fabric, host, [rank], {**chosen.options, **(options or {})}, seed
            )
        group = cls(channel, turn, rank, size, capacity_bytes)
        try:
            group.connect(store, name)
        except BaseException:
            group.close()
            raise
        return group

    def connect(self, store: Store, name: str = "mrclab") -> None:
        """Connect to all other ranks through a store, and start the NIC. Raise the store's errors."""
        peers = [rank for rank in range(self.size) if rank != self.rank]
        for peer in peers:
            store.set(f"{name}/{self.rank}/{peer}", json.dumps(self._channel.attributes(peer)))
        for peer in peers:
            self._channel.connect(peer, json.loads(store.get(f"{name}/{peer}/{self.rank}")))
        self._store, self._name = store, name
        self._meet("connected")
        self._thread.start()

    def all_reduce(self, values: Array) -> Future[None]:
        """Sum an array over all ranks, in place. The future is done when the array holds the sums.

        Do not read or change the array until then. Additions have a fixed order (`ring_sum`). The future may
        fail with GroupError. Raise ValueError for an array that is not flat, contiguous and writable.
        """
        _check(values)
        done: Future[None] = Future()
        return self._give(done, lambda: self._tasks.append((values, done)))

    def send(self, peer: int, values: Array, tag: int = 0) -> Future[None]:
        """Send an array to a rank. The future is done when the array is in that rank's memory.

        Do not change the array until then. Messages with the same tag arrive in order. The future may fail
        with GroupError. Raise ValueError for a rank that is not a peer, and for an array that `all_reduce`
        does not accept.
        """
        _check(values)
        self._check_peer(peer)
        done: Future[None] = Future()
        data = values.view(np.uint8).data
        return self._request(done, lambda: self._messages.send(peer, tag, data, done))

    def receive(self, peer: int | None, into: Array, tag: int = 0) -> Future[int]:
        """Receive the next array with this tag from a rank, or from any rank if ``peer`` is None.

        The future's result is the sender's rank. The future may fail with GroupError, and with ValueError for
        a message of another length. Raise ValueError for a rank or an array that `send` does not accept.
        """
        _check(into)
        if peer is not None:
            self._check_peer(peer)
        done: Future[int] = Future()
        place = into.view(np.uint8).data
        return self._request(done, lambda: self._messages.receive(peer, tag, place, done))

    def _check_peer(self, peer: int) -> None:
        if not 0 <= peer < self.size or peer == self.rank:
            raise ValueError(f"rank {self.rank} of {self.size} has no peer {peer}")

    def _request(self, done: Future[T], begin: Callable[[], None]) -> Future[T]:
        return self._give(done, lambda: self._requests.append((begin, done)))

    def _give(self, done: Future[T], give: Callable[[], None]) -> Future[T]:
        """Pass an operation to the group's thread, or fail its future if the group has failed."""
        done.set_running_or_notify_cancel()  # no longer cancellable, because other ranks take part
        with self._lock:
            if self._problem is None:
                give()
                self._pending.add(done)
                done.add_done_callback(self._pending.discard)
                os.eventfd_write(self._bell, 1)
                return done
        done.set_exception(GroupError(str(self._problem)))
        return done

    def finish(self) -> None:
        """Wait until this rank and all other ranks have finished their work. Raise the store's errors."""
        wait(tuple(self._pending))
        self._meet("finished")

    def close(self) -> None:
        """Close the NIC at once. Unfinished all-reduces and messages fail with GroupError."""
        self._fail(GroupError("the group was closed"))
        if self._thread.is_alive():
            os.eventfd_write(self._bell, 1)
            self._thread.join()
        self._channel.close()
        os.close(self._bell)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.close()

    def _meet(self, where: str) -> None:
        """Wait until every rank has reached the place with this name."""
        assert self._store is not None
        self._store.set(f"{self._name}/{where}/{self.rank}", "here")
        for rank in range(self.size):
            self._store.get(f"{self._name}/{where}/{rank}")

    def _work(self) -> None:
        """Run the NIC and the all-reduces, one after another. The group's thread runs this function."""
        steps = self._steps()
        try:
            waiting = next(steps)
            while self._problem is None:
                while waiting.ready():
                    waiting = next(steps)
                if self._bell in self._turn(None, (self._bell,)):
                    os.eventfd_read(self._bell)
                    self._begin()
                for event in self._channel.events():
                    if not self._messages.take(event):
                        self._comm.take(event)
        except Exception as error:
            self._fail(error)
        self._messages.fail(GroupError(str(self._problem)))

    def _begin(self) -> None:
        """Start the messages that the program has added since the last call."""
        while True:
            with self._lock:
                if not self._requests or self._problem is not None:
                    return
                begin, _ = self._requests.popleft()
            begin()

    def _steps(self) -> Steps[None]:
        while True:
            yield Wait(lambda: bool(self._tasks))
            values, done = self._tasks[0]
            yield from self._sum(values)
            with self._lock:
                failed = self._problem is not None
                if not failed:
                    self._tasks.popleft()
            if not failed:
                done.set_result(None)

    def _sum(self, values: Array) -> Steps[None]:
        """Sum an array, piece by piece.

        The ring needs no barrier between two pieces. When a rank has all chunks of a piece, all ranks have
        already read their SCRATCH. No rank puts data into DATA before all ranks have started the next piece.
        """
        most = self._capacity_bytes // values.itemsize
        for start in range(0, len(values), most):
            piece = values[start : start + most]
            data = np.frombuffer(self._comm.regions[DATA], values.dtype, len(piece))
            data[:] = piece
            yield from all_reduce(self._comm, len(piece), values.dtype)
            piece[:] = data

    def _fail(self, problem: Exception) -> None:
        """Fail every operation that the thread has not started. Later calls do nothing."""
        with self._lock:
            if self._problem is not None:
                return
            self._problem = problem
            tasks, self._tasks = self._tasks, deque()
            requests, self._requests = self._requests, deque()
        for _, done in (*tasks, *requests):
            done.set_exception(GroupError(str(problem)))


def _check(values: Array) -> None:
    if values.ndim != 1 or not values.flags.c_contiguous or not values.flags.writeable:
        raise ValueError("the array must have one dimension, be contiguous, and be writable")
