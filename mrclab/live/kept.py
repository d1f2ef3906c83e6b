"""A session's records of the past, small enough to keep for hours: JSON, compressed."""

from __future__ import annotations

import json
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

KEPT_BYTES = 8 << 20
"""Of the packets around faults, compressed: some hundred pictures."""


def pack(document: Mapping[str, Any]) -> bytes:
    """Return a JSON document, compressed: as objects it would take ten times as much."""
    return zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 1)


def unpack(packed: bytes) -> dict[str, Any]:
    """Return the document that `pack` was given."""
    found: dict[str, Any] = json.loads(zlib.decompress(packed))
    return found


class KeptPackets:
    """The packets around faults, by the fault's number and transport; the oldest go first."""

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self.held_bytes = 0
        self._most_bytes = most_bytes
        self._packed: OrderedDict[tuple[int, str], bytes] = OrderedDict()

    def put(self, number: int, transport: str, packets: Mapping[str, Any]) -> None:
        """Keep the packets of a fault, in place of the ones kept before."""
        self.held_bytes -= len(self._packed.pop((number, transport), b""))
        self._packed[number, transport] = packed = pack(packets)
        self.held_bytes += len(packed)
        while self.held_bytes > self._most_bytes:
            self.held_bytes -= len(self._packed.popitem(last=False)[1])

    def of(self, number: int, transport: str) -> dict[str, Any] | None:
        """Return the packets of a fault; None if they are not kept."""
        packed = self._packed.get((number, transport))
        return None if packed is None else unpack(packed)
