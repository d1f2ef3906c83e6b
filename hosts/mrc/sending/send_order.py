"""The transmissions of one queue pair in the order in which they were sent."""

from __future__ import annotations

from typing import Final

from mrclab.hosts.mrc.outstanding.scoreboard import Scoreboard, SentPacket

_KEPT: Final = 64
"""Entries of the past to keep at most, unless more than that many follow them."""


class SendOrder:
    """Transmissions, oldest first. Any that are not in flight any more are passed over.

    A list with the index of its first element: the compiled core reads it faster than a deque.
    """

    __slots__ = ("_board", "_first", "_limit", "_packets", "_scanned")

    def __init__(self, board: Scoreboard, mpr: int) -> None:
        """Make an empty list for a sender that never has more than `mpr` packets in flight."""
        self._board = board
        self._limit = 4 * mpr
        """Entries at most."""
        self._packets: list[SentPacket | None] = []
        self._first = 0
        self._scanned = 0
        """Where `take_retired` goes on."""

    def add(self, packet: SentPacket) -> None:
        """Note a transmission."""
        if len(self._packets) >= self._limit:
            self._compact()
        self._packets.append(packet)

    def _compact(self) -> None:
        """Drop every transmission that is not in flight, at any position.

        `oldest` does so at the beginning of the list, but only when a SACK arrives: a peer may answer with
        NACKs alone.
        """
        board = self._board
        kept: list[SentPacket | None] = []
        scanned = 0
        for at in range(self._first, len(self._packets)):
            packet = self._packets[at]
            if packet is not None and board.current(packet.psn) is packet:
                kept.append(packet)
                if at < self._scanned:
                    scanned += 1
        self._packets = kept
        self._first = 0
        self._scanned = scanned

    def oldest(self) -> SentPacket | None:
        """Return the oldest transmission in flight, and drop all before it."""
        packets, board = self._packets, self._board
        at, end = self._first, len(self._packets)
        found: SentPacket | None = None
        while at < end:
            packet = packets[at]
            if packet is not None:
                if board.current(packet.psn) is packet:
                    found = packet
                    break
                packets[at] = None  # It refers to the message, whose memory may be the application's again.
            at += 1
        if at > _KEPT and 2 * at > end:
            del packets[:at]
            self._scanned -= at
            at = 0
        self._first = at
        return found

    def drop_oldest(self) -> None:
        """Drop the transmission that `oldest` returned."""
        self._packets[self._first] = None
        self._first += 1

    def newest(self) -> SentPacket | None:
        """Return the newest transmission in flight."""
        for at in range(len(self._packets) - 1, self._first - 1, -1):
            packet = self._packets[at]
            if packet is not None and self._board.current(packet.psn) is packet:
                return packet
        return None

    def rescan(self) -> None:
        """Let `take_retired` start again: another EV was retired."""
        self._scanned = 0

    def take_retired(self, before_ns: int) -> list[SentPacket]:
        """Take out the packets sent before this time, on an EV that was retired for a loss after it.

        Each transmission is looked at once, until `rescan` is called.
        """
        found: list[SentPacket] = []
        packets, board = self._packets, self._board
        at = max(self._scanned, self._first)
        while at < len(packets):
            packet = packets[at]
            if packet is not None:
                if packet.sent_ns >= before_ns:
                    break
                if packet.sent_ns < packet.ev.retired_ns and board.current(packet.psn) is packet:
                    found.append(packet)
                    packets[at] = None
            at += 1
        self._scanned = at
        return found

    def clear(self) -> None:
        """Forget everything."""
        self._packets = []
        self._first = self._scanned = 0
