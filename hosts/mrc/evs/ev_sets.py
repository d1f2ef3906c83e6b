"""The EV sets of a NIC: one for each queue pair, or one for all queue pairs to a peer (option `ev_sets`)."""

from __future__ import annotations

from mrclab.hosts.mrc.config import MrcConfig
from mrclab.hosts.mrc.evs.ev_set import EvSet


class EvSets:
    """The sets that queue pairs share, and how many queue pairs share each."""

    def __init__(self) -> None:
        self._shared: dict[tuple[frozenset[bytes], MrcConfig], EvSet] = {}
        self._users: dict[int, int] = {}
        """Number of queue pairs of each shared set, by the number of the first one."""

    def of(self, peers: frozenset[bytes], config: MrcConfig) -> EvSet | None:
        """Return the set that one more queue pair to a peer shares; None if it needs a new one."""
        found = self._shared.get((peers, config))
        if found is not None:
            self._users[found.qpn] += 1
        return found

    def add(self, peers: frozenset[bytes], evs: EvSet) -> None:
        """Take in a queue pair's new set, which later ones to this peer share if its options ask for that."""
        if evs.config.ev_sets == "peer":
            self._shared[peers, evs.config] = evs
            self._users[evs.qpn] = 1

    def leave(self, evs: EvSet) -> None:
        """Note that a queue pair of this set has ended; the last one takes a shared set with it."""
        left = self._users.get(evs.qpn, 0) - 1
        if left > 0:
            self._users[evs.qpn] = left
        elif left == 0:
            del self._users[evs.qpn]
            self._shared = {key: kept for key, kept in self._shared.items() if kept is not evs}
