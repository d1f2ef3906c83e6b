"""Convert values from and to P4Runtime's messages: numbers, data, field matches of keys, rates of meters.

Sections of the specification: 8.4 for numbers, which are byte strings; 8.5 for data, the values of registers
and digests; 9.1.1 for field matches, the keys of table entries and value sets; 9.4 for meter configurations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from finsy.proto import p4d, p4i, p4r, p4t

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


def encode_signed(value: int, width: int) -> bytes:
    """Return the canonical form of `width` bits that hold a number in two's complement."""
    number = value - (value >> width - 1 << width)
    return number.to_bytes((number ^ number >> width).bit_length() // 8 + 1, "big", signed=True)


def decode_signed(data: bytes, width: int, what: str) -> int:
    """Read a number in two's complement from a byte string of any length. Return its `width` bits.

    Raise P4RuntimeError OUT_OF_RANGE if the string is empty or the number has more bits.
    """
    if not data:
        raise P4RuntimeError(Code.OUT_OF_RANGE, f"{what}: empty byte string")
    number = int.from_bytes(data, "big", signed=True)
    if number >> width - 1 not in (0, -1):
        raise P4RuntimeError(Code.OUT_OF_RANGE, f"{what}: {number} does not fit {width} bits")
    return number & full_mask(width)


@dataclass(frozen=True)
class DataTypes:
    """The types of a program's data, as the P4Info declares them, and the names of errors by number."""

    info: p4t.P4TypeInfo
    errors: Mapping[int, str]

    def _plain(self, spec: p4t.P4DataTypeSpec) -> p4t.P4DataTypeSpec:
        """Return the underlying type of a new type (P4's `type`)."""
        if spec.WhichOneof("type_spec") == "new_type":
            return self.info.new_types[spec.new_type.name].original_type
        return spec

    def read(self, spec: p4t.P4DataTypeSpec, data: p4d.P4Data, width: int, what: str) -> int:
        """Return the bits of a value of type `spec`. Raise P4RuntimeError if it has another type or size."""
        spec = self._plain(spec)
        kind = {"bool": "bool", "serializable_enum": "enum_value"}.get(
            spec.WhichOneof("type_spec") or "", "bitstring"
        )
        if data.WhichOneof("data") != kind:
            raise _bad(f"{what} takes a {'bit string' if kind == 'bitstring' else kind}")
        if kind == "bool":
            return int(data.bool)
        if spec.bitstring.HasField("int"):
            return decode_signed(data.bitstring, width, what)
        return decode(data.bitstring if kind == "bitstring" else data.enum_value, width, what)

    def write(self, spec: p4t.P4DataTypeSpec, values: Iterator[int], to: p4d.P4Data) -> None:
        """Fill a message of type `spec` with values: one for each field of the type, in order."""
        spec = self._plain(spec)
        match spec.WhichOneof("type_spec"):
            case "struct":
                for member in self.info.structs[spec.struct.name].members:
                    self.write(member.type_spec, values, to.struct.members.add())
            case "tuple":
                for part in spec.tuple.members:
                    self.write(part, values, to.tuple.members.add())
            case "header":
                to.header.is_valid = True
                for field in self.info.headers[spec.header.name].members:
                    to.header.bitstrings.append(_bits(field.type_spec, next(values)))
            case "bool":
                to.bool = bool(next(values))
            case "serializable_enum":
                to.enum_value = encode(next(values))
            case "enum":
                names = dict(enumerate(m.name for m in self.info.enums[spec.enum.name].members))
                to.enum = names.get(next(values), "")
            case "error":
                to.error = self.errors.get(next(values), "")
            case _:
                to.bitstring = _bits(spec.bitstring, next(values))

    def takes(self, spec: p4t.P4DataTypeSpec, count: int) -> bool:
        """Return True if a message of type `spec` has `count` values."""
        values = iter((0,) * count)
        try:
            self.write(spec, values, p4d.P4Data())
        except (StopIteration, RecursionError):
            return False
        return next(values, None) is None


def _bits(spec: p4t.P4BitstringLikeTypeSpec, value: int) -> bytes:
    return encode_signed(value, spec.int.bitwidth) if spec.HasField("int") else encode(value)


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
