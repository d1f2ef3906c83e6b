"""The programs that clients set: the BMv2 JSON in a device config, and what it compiles to.

The JSON comes bare or in the wrapper that older clients put around it. The switches of a process share
compiled programs.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection

from mrclab.linux.errors import BadInputError, SwitchError
from mrclab.switches.ebpf.codegen.compile import compile_json
from mrclab.switches.ebpf.plan import Compiled

_VARINT_BITS = 70  # protobuf's are ten bytes of seven bits at most
LARGEST_BYTES = 16 << 20
"""Of a device config: the JSON of the largest programs has some hundred kilobytes."""
_MOST_FIELDS = 64
_DEVICE_DATA = 3  # field of p4.tmp.P4DeviceConfig, as the p4lang tutorials send it


def json_of(config: bytes) -> bytes:
    """Return the JSON in a device config. Raise BadInputError if there is none, or it is too large.

    The server does this between two requests, so it has to end at once for any config.
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
    """Return the content of a length-delimited field of a protobuf message."""
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
"""Programs that no switch has loaded and that are kept in case one is set again."""


class Programs:
    """Compiled programs by the digest of their JSON: a fabric compiles its program once."""

    def __init__(self) -> None:
        self._known: dict[bytes, asyncio.Future[Compiled]] = {}  # the least recently asked for first

    async def get(self, data: bytes) -> Compiled:
        """Return the compiled program; concurrent callers share one compilation. Raise SwitchError."""
        digest = hashlib.sha256(data).digest()
        if digest not in self._known:
            self._known[digest] = asyncio.ensure_future(asyncio.to_thread(compile_json, data))
        task = self._known[digest] = self._known.pop(digest)
        try:
            return await asyncio.shield(task)
        except SwitchError:
            self._known.pop(digest, None)
            raise

    def release(self, used: Collection[Compiled]) -> list[Compiled]:
        """Drop the programs that no switch has loaded, except the last ``SPARE``; return the dropped ones."""
        done = {digest: task for digest, task in self._known.items() if task.done() and not task.exception()}
        idle = [digest for digest, task in done.items() if not any(task.result() is c for c in used)]
        return [self._known.pop(digest).result() for digest in idle[:-SPARE]]
