"""The messages that arrive packet by packet, where WRITE_IMMs need not wait for earlier writes."""

from __future__ import annotations

from mrclab.hosts.mrc.codec.values import DataPacket


class Messages:
    """Which messages are complete, by MSN, and which WRITE_IMMs may be delivered, by RQMSN [P1 §2.1].

    Used when WRITE_IMM completions need not wait for earlier writes; otherwise the cumulative PSN says it
    all.
    """

    def __init__(self) -> None:
        self._missing: dict[int, int] = {}
        self._immediates: dict[int, tuple[int, int, int]] = {}
        self._whole: dict[int, tuple[int, int]] = {}
        self._next_rqmsn = 0

    def stashed(self) -> int:
        """Return how many WRITE_IMMs have arrived and are not delivered."""
        return len(self._immediates) + len(self._whole)

    def add(self, packet: DataPacket, single: bool) -> list[tuple[int, int, int]]:
        """Count one packet, `single` if it is its whole message; return the (imm, length, rqmsn) that may be
        delivered now.
        """
        msn, length, dma_length = packet.msn, packet.length, packet.message_length
        imm, rqmsn = packet.imm, packet.rqmsn
        missing = self._missing.pop(msn, dma_length) - length
        if imm is not None:
            self._immediates[msn] = (imm, dma_length, rqmsn)
        if missing > 0:
            self._missing[msn] = missing
            return []
        if single and imm is None:
            return []
        done = self._immediates.pop(msn, None)
        if done is None:
            return []
        self._whole[done[2]] = (done[0], done[1])
        ready: list[tuple[int, int, int]] = []
        while (entry := self._whole.pop(self._next_rqmsn, None)) is not None:
            ready.append((entry[0], entry[1], self._next_rqmsn))
            self._next_rqmsn = (self._next_rqmsn + 1) & 0xFFFF
        return ready
