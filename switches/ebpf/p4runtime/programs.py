"""Programs that clients set: extract the BMv2 JSON from a device config, and compile it.

A device config is the JSON itself, or a protobuf message that contains the JSON (from older clients). The
switches of a process share compiled programs.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection

from mrclab.linux.errors import BadInputError
from mrclab.switches.ebpf.codegen.compile import compile_json
from mrclab.switches.ebpf.plan import Compiled

_VARINT_BITS = 70  # a number in protobuf has at most ten bytes of seven bits
LARGEST_BYTES = 16 << 20
"""Size limit of a device config. The JSON of a very large program has some hundred kilobytes."""
_MOST_FIELDS = 64
_DEVICE_DATA = 3  # number of the field with the JSON in p4.tmp.P4DeviceConfig (p4lang tutorials)


def json_of(config: bytes) -> bytes:
    """Return the JSON in a device config. Raise BadInputError if the JSON is missing or too large.

    During this call the server handles no other request, so the call must be fast for every input.
    """
    if len(config) > LARGEST_BYTES:
        raise BadInputError(
            f"the device config has {len(config)} bytes, and {LARGEST_BYTES} at most are taken"
        )
    if config.lstrip()[:1] == b"{":
        return config
    try:
        data = _length_delimited(config, _DEVICE_DATA)
    except (IndexError, ValueError):
        data = None
    if data is None or data.lstrip()[:1] != b"{":
        raise BadInputError("the device config is not BMv2 JSON")
    return data


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < _VARINT_BITS:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("not a number of this encoding")


def _length_delimited(data: bytes, wanted: int) -> bytes | None:
    """Return the content of the length-delimited field with the number `wanted`, or None."""
    at = fields = 0
    while at < len(data):
        tag, at = _varint(data, at)
        fields += 1
        if tag >> 3 == 0 or fields > _MOST_FIELDS:
            raise ValueError("not a field of this message")
        if tag & 7 == 0:
            _, at = _varint(data, at)
        elif tag & 7 == 2:
            size, at = _varint(data, at)
            if tag >> 3 == wanted:
                return data[at : at + size]
            at += size
        else:
            raise ValueError("not a field of this message")
    return None


SPARE = 2
"""Number of unused programs that are kept. If a client sets a kept program, no compilation is needed."""


class Programs:
    """A cache of compiled programs, by the hash of their JSON, for all switches of the process."""

    def __init__(self) -> None:
        self._known: dict[bytes, asyncio.Future[Compiled]] = {}  # least recently used program first

    async def get(self, data: bytes) -> Compiled:
        """Return the compiled program. Compile equal JSON once. Raise SwitchError if the JSON is invalid.

        A failed compilation is not kept: its cause may be the machine, for instance a lack of memory.
        """
        digest = hashlib.sha256(data).digest()
        if digest not in self._known:
            self._known[digest] = asyncio.ensure_future(asyncio.to_thread(compile_json, data))
        task = self._known[digest] = self._known.pop(digest)
        try:
            return await asyncio.shield(task)
        except Exception:
            self._known.pop(digest, None)
            raise

    def release(self, used: Collection[Compiled]) -> list[Compiled]:
        """Drop and return the programs that no switch has loaded, except ``SPARE`` programs for later use."""
        done = {digest: task for digest, task in self._known.items() if task.done() and not task.exception()}
        idle = [digest for digest, task in done.items() if not any(task.result() is c for c in used)]
        return [self._known.pop(digest).result() for digest in idle[:-SPARE]]
