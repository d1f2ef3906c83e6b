"""Numbers as P4Runtime's byte strings (specification, section 8.4)."""

from __future__ import annotations

from finsy.proto import p4r

from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError


def encode(value: int) -> bytes:
    """Return the canonical form: big-endian and as short as possible, but one byte for zero."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def decode(data: bytes, width: int, what: str) -> int:
    """Read a byte string of any length that a bit<width> can hold.

    Raise P4RuntimeError OUT_OF_RANGE for an empty one and for one that is too large.
    """
    if not data:
        raise P4RuntimeError(Code.OUT_OF_RANGE, f"{what}: empty byte string")
    value = int.from_bytes(data, "big")
    if value >> width:
        raise P4RuntimeError(Code.OUT_OF_RANGE, f"{what}: {value:#x} does not fit {width} bits")
    return value


def need_modify(update: p4r.Update, what: str) -> None:
    """Raise P4RuntimeError INVALID_ARGUMENT unless an update modifies."""
    if update.type != p4r.Update.MODIFY:
        raise P4RuntimeError(Code.INVALID_ARGUMENT, f"{what} can only be modified")
