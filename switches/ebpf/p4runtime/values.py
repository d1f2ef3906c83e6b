"""Convert values from and to P4Runtime's messages: numbers, the field matches of keys, rates of meters.

Sections of the specification: 8.4 for numbers, which are byte strings; 9.1.1 for field matches, the keys of
table entries and value sets; 9.4 for meter configurations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from finsy.proto import p4i, p4r

from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError
from mrclab.switches.ebpf.runtime.entries import Match, full_mask
from mrclab.switches.ebpf.runtime.meters import Rates


def encode(value: int) -> bytes:
    """Return a number in canonical form: big-endian, as few bytes as possible. Zero is one byte."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def decode(data: bytes, width: int, what: str) -> int:
    """Read a number of at most `width` bits from a byte string of any length.

    Raise P4RuntimeError OUT_OF_RANGE if the string is empty or the number has more bits.
    """
    if not data:
        raise P4RuntimeError(Code.OUT_OF_RANGE, f"{what}: empty byte string")
    value = int.from_bytes(data, "big")
    if value >> width:
        raise P4RuntimeError(Code.OUT_OF_RANGE, f"{what}: {value:#x} does not fit {width} bits")
    return value


def need_modify(update: p4r.Update, what: str) -> None:
    """Raise P4RuntimeError INVALID_ARGUMENT if the type of an update is not MODIFY."""
    if update.type != p4r.Update.MODIFY:
        raise P4RuntimeError(Code.INVALID_ARGUMENT, f"{what} can only be modified")


KINDS = {
    p4i.MatchField.EXACT: "exact",
    p4i.MatchField.LPM: "lpm",
    p4i.MatchField.TERNARY: "ternary",
    p4i.MatchField.RANGE: "range",
    p4i.MatchField.OPTIONAL: "optional",
}


def _bad(message: str) -> P4RuntimeError:
    return P4RuntimeError(Code.INVALID_ARGUMENT, message)


def read_match(
    where: str, fields: Sequence[p4i.MatchField], widths: Sequence[int], matches: Iterable[p4r.FieldMatch]
) -> tuple[Match, ...]:
    """Read the fields of a key from a message, in the order of `fields`. Errors begin with `where`."""
    by_id: dict[int, p4r.FieldMatch] = {}
    known = {f.id for f in fields}
    for m in matches:
        if m.field_id not in known:
            raise _bad(f"{where} has no match field {m.field_id}")
        if m.field_id in by_id:
            raise _bad(f"{where}: match field {m.field_id} given twice")
        by_id[m.field_id] = m
    return tuple(
        _element(f"{where}, {f.name}", KINDS[f.match_type], width, by_id.get(f.id))
        for f, width in zip(fields, widths, strict=True)
    )


def _element(what: str, kind: str, width: int, m: p4r.FieldMatch | None) -> Match:
    full = full_mask(width)
    if m is None:
        if kind == "exact":
            raise _bad(f"{what}: an exact match field cannot be left out")
        return (0, full) if kind == "range" else (0, 0)
    if m.WhichOneof("field_match_type") != kind:
        raise _bad(f"{what}: expects a match of type {kind}")
    match kind:
        case "exact":
            return decode(m.exact.value, width, what), full
        case "optional":
            return decode(m.optional.value, width, what), full
        case "lpm":
            length = m.lpm.prefix_len
            if not 0 < length <= width:
                raise _bad(f"{what}: prefix length {length} is not in 1..{width}")
            value, mask = decode(m.lpm.value, width, what), full ^ (full >> length)
        case "range":
            low, high = (decode(v, width, what) for v in (m.range.low, m.range.high))
            if low > high:
                raise _bad(f"{what}: range from {low} to {high}")
            if (low, high) == (0, full):
                raise _bad(f"{what}: a range over all values must be left out")
            return low, high
        case _:
            value = decode(m.ternary.value, width, what)
            mask = decode(m.ternary.mask, width, what)
            if mask == 0:
                raise _bad(f"{what}: a match on nothing must be left out")
    if value & ~mask:
        raise _bad(f"{what}: value {value:#x} has bits outside its mask {mask:#x}")
    return value, mask


def write_match(
    fields: Sequence[p4i.MatchField],
    widths: Sequence[int],
    match: Iterable[Match],
    to: p4r.TableEntry | p4r.ValueSetMember,
) -> None:
    """Write the fields of a key into a message. Omit a field that matches every value."""
    for f, width, (a, z) in zip(fields, widths, match, strict=True):
        kind, full = KINDS[f.match_type], full_mask(width)
        if kind != "exact" and (a, z) == ((0, full) if kind == "range" else (0, 0)):
            continue
        m = to.match.add(field_id=f.id)
        match kind:
            case "exact":
                m.exact.value = encode(a)
            case "optional":
                m.optional.value = encode(a)
            case "lpm":
                m.lpm.value, m.lpm.prefix_len = encode(a), z.bit_count()
            case "range":
                m.range.low, m.range.high = encode(a), encode(z)
            case _:
                m.ternary.value, m.ternary.mask = encode(a), encode(z)


def read_rates(config: p4r.MeterConfig) -> Rates:
    """Read the rates of a meter from a message. Raise P4RuntimeError INVALID_ARGUMENT for invalid rates."""
    numbers = (config.cir, config.cburst, config.pir, config.pburst)
    if any(n < 0 for n in numbers) or config.eburst:
        raise P4RuntimeError(Code.INVALID_ARGUMENT, "a meter takes no negative numbers and no eburst")
    if config.pir < config.cir:
        raise P4RuntimeError(Code.INVALID_ARGUMENT, "a meter's peak rate is below its committed rate")
    return Rates(*numbers)


def write_rates(rates: Rates, to: p4r.MeterConfig) -> None:
    """Write the rates of a meter into a message."""
    to.cir, to.cburst, to.pir, to.pburst = (
        rates.committed,
        rates.committed_burst,
        rates.peak,
        rates.peak_burst,
    )
