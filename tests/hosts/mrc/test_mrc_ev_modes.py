"""EVs of the control API: expansion of fields, layouts, modes, and port numbers that begin at 1."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.hosts.mrc.evs.ev_modes import (
    EvEntry,
    EvField,
    EvFormat,
    EvMode,
    EvRecipe,
    expand,
    generate,
    invent,
    make_paths,
)

ONE_FIELD = [
    # width, init, min, max, mask; the first and the last value
    ((16, 0x100, 0, 255, 0xFF), 0x100, 0x1FF),
    ((16, 0x100, 1, 15, 0x0F), 0x101, 0x10F),
    ((16, 0x1000, 1, 255, 0x0F0F), 0x1001, 0x1F0F),
    ((16, 0x1234, 0, 0, 0), 0x1234, 0x1234),
    ((8, 0xA0, 0, 3, 0x03), 0xA0, 0xA3),
    ((8, 3, 0, 15, 0x0F), 0, 15),
    ((8, 0, 0, 179, 0xFF), 0, 179),
]


@pytest.mark.parametrize(("field", "first", "last"), ONE_FIELD)
def test_a_field_is_its_fixed_bits_and_those_of_the_ev(field, first, last):
    made = EvField(*field)
    values = [made.value(number) for number in made.numbers()]
    assert (values[0], values[-1]) == (first, last)
    assert len(values) == field[3] - field[2] + 1


TWO = (EvField(16, 0x1000, 0, 255, 0x0F0F), EvField(16, 0x2000, 0, 255, 0x0F0F))
NIBBLES = (EvField(16, 0x0100, 0, 15, 0x000F), EvField(16, 0x0200, 0, 15, 0x000F))
LOCATOR = (EvField(32, 0x13131313), *(EvField(16, i << 8, 0, 15, 0xF) for i in range(1, 5)))


@pytest.mark.parametrize(
    ("fields", "ev", "value"),
    [
        (TWO, 0x3312, 0x1303_2102),
        (TWO, 0xE33E, 0x1E03_230E),
        (TWO, 0xB5B5, 0x1B05_2B05),
        (TWO, 0xD05A, 0x1D00_250A),
        (TWO, 0x24CF, 0x1204_2C0F),
        (TWO, 0x97FA, 0x1907_2F0A),
        (NIBBLES, 0xA4, 0x010A_0204),
        (NIBBLES, 0x7F, 0x0107_020F),
        (LOCATOR, 0x9B79, 0x13131313_0109_020B_0307_0409),
    ],
)
def test_published_vectors_of_expansion(fields, ev, value):
    assert expand(ev, fields) == value


def counters(*widths):
    return tuple(EvField.counter(width) for width in widths)


def tiers(count):
    """Return uSIDs whose high byte is the tier, and whose low byte is the choice in that tier."""
    return tuple(EvField(16, tier << 8, 0, 255, 0xFF) for tier in range(1, count + 1))


@pytest.mark.parametrize(
    ("fields", "widths", "bits", "first", "last"),
    [
        # Structured EVs of three tiers.
        ((EvField.counter(8, 179), *counters(4, 4)), (8, 4, 4), 16, 0, 179 << 8 | 0xFF),
        (counters(10, 8, 4), (10, 8, 4), 22, 0, (1 << 22) - 1),
        # Four hops; the plane is the first field.
        (counters(3, 8, 4, 4), (3, 8, 4, 4), 19, 0, (1 << 19) - 1),
        # SRv6: a locator and four uSIDs. With an SRH: six uSIDs, and a second locator with four or two uSIDs.
        ((EvField(32, 0x5F000000), *tiers(4)), (32, *[16] * 4), 96, None, None),
        (
            (EvField(32, 0x5F000000), *tiers(6), EvField(32, 0x5F000000), *tiers(4)),
            (32, *[16] * 6, 32, *[16] * 4),
            224,
            None,
            None,
        ),
        (
            (EvField(32, 0x5F000000), *tiers(6), EvField(32, 0x5F000000), *tiers(2)),
            (32, *[16] * 6, 32, *[16] * 2),
            192,
            None,
            None,
        ),
    ],
)
def test_published_layouts_are_taken(fields, widths, bits, first, last):
    assert sum(widths) == bits <= EvFormat.SRV6_SRH.value
    choices = sum(field.bits for field in fields)
    low = expand(0, fields, widths)
    high = expand((1 << choices) - 1, fields, widths)
    assert low < high < 1 << bits
    if first is not None:
        evs = generate(fields)
        assert expand(next(evs), fields, widths) == first
        numbers = [field.numbers()[-1] for field in fields]
        assert last == int("".join(f"{n:0{f.width}b}" for n, f in zip(numbers, fields, strict=True)), 2)
    else:
        assert low.to_bytes(bits // 8, "big")[:6] == bytes.fromhex("5f000000 0100")
        assert high.to_bytes(bits // 8, "big")[:6] == bytes.fromhex("5f000000 01ff")


def test_generated_evs_of_three_tiers():
    """The control API's example: 8 bits for the 180 links of a T0, and two more fields of 4 bits."""
    fields = (EvField.counter(8, 179), *counters(4, 4))
    evs = list(itertools.islice(generate(fields), 1000))
    assert evs == list(range(1000))
    assert sum(1 for _ in generate(fields)) == 180 * 16 * 16
    denied = (EvField.counter(8, denied=frozenset(range(180, 256))), *counters(4, 4))
    assert all(a == b for a, b in zip(generate(denied), generate(fields), strict=True))
    assert expand(1 << 12, counters(10, 8, 4)) == 1 << 12, "most significant bits first"


def test_a_field_stands_right_aligned_in_a_wider_one_of_the_format():
    fields = (EvField.counter(8), EvField.counter(4))
    assert expand(0xABC, fields, (16, 16, 16)) == 0x00AB_000C_0000
    with pytest.raises(ValueError, match="does not fit"):
        expand(0xABC, fields, (16, 2))
    with pytest.raises(ValueError, match="no room for 2 fields"):
        expand(0xABC, fields, (16,))
    with pytest.raises(ValueError, match="more than the 12 bits"):
        expand(0x1ABC, fields)


@given(st.lists(st.tuples(st.integers(1, 16), st.integers(0, 0xFFFF), st.integers(0, 0xFFFF)), min_size=1))
def test_different_evs_have_different_values_and_fixed_bits_stay(drawn):
    fields = [
        EvField(width, init & (1 << width) - 1, mask=mask & (1 << width) - 1) for width, init, mask in drawn
    ]
    bits = sum(field.bits for field in fields)
    evs = {0, 1, (1 << bits) // 3, (1 << bits) - 1} & set(range(1 << bits)) if bits < 20 else {0, 1}
    values = {expand(ev, fields) for ev in evs}
    assert len(values) == len(evs)
    fixed = int("".join(f"{(1 << f.width) - 1 & ~f.mask:0{f.width}b}" for f in fields), 2)
    assert len({value & fixed for value in values}) == 1


def test_modes():
    rng = random.Random(3)
    auto = EvRecipe(EvMode.AUTO, count=64).evs(0, rng)
    assert len(set(auto)) == 64
    assert max(auto) >> 16
    # Ports are counted from 1, and an EV may be listed several times.
    entries = (EvEntry(7, 1), EvEntry(8, 2), EvEntry(7, 1), EvEntry(9, 1), EvEntry())
    explicit = EvRecipe(EvMode.EXPLICIT, entries=entries)
    assert explicit.evs(0, rng) == [7, 7, 9]
    assert explicit.evs(1, rng) == [8]
    generated = EvRecipe(EvMode.GENERATED, count=3, fields=(EvField(16, init=2), EvField.counter(16)))
    assert generated.values(2, rng) == [2 << 16, 2 << 16 | 1, 2 << 16 | 2]
    paths = make_paths(generated, 2, rng, lambda ev: ev.to_bytes(16, "big"))
    assert [path.ev for path in paths] == generated.values(2, rng)
    assert [path.outer_dst[-1] for path in paths] == [0, 1, 2]


def test_a_value_of_128_bits_is_the_container_and_its_ev_travels():
    fields = (EvField(32, 0x5F000000), *tiers(2), EvField(32), EvField(32))
    recipe = EvRecipe(EvMode.EXPLICIT, entries=(EvEntry(0x0102, 1), EvEntry(0x0304, 1)), fields=fields)
    first, second = make_paths(recipe, 0, random.Random(1))
    assert (first.ev, second.ev) == (0x0102, 0x0304)
    assert first.outer_dst == bytes.fromhex("5f000000 0101 0202") + bytes(8)
    assert second.outer_dst == bytes.fromhex("5f000000 0103 0204") + bytes(8)


def test_an_entry_without_a_port_is_not_populated():
    assert not EvEntry().populated
    assert EvEntry(0, 1).populated
    with pytest.raises(ValueError, match="port from 1 on"):
        EvEntry(7, 0)


@pytest.mark.parametrize(
    "make_it",
    [
        lambda: EvField(0),
        lambda: EvField(33),
        lambda: EvField(4, init=16),
        lambda: EvField(4, mask=16),
        lambda: EvField(4, max=4, mask=3),
        lambda: EvField(4, min=2, max=1, mask=3),
        lambda: invent(5, random.Random(1), bits=2),
    ],
)
def test_bad_fields_are_refused(make_it):
    with pytest.raises(ValueError, match=r"bits|field"):
        make_it()
