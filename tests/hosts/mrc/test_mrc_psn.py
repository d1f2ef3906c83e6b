import random

from hypothesis import given
from hypothesis import strategies as st

from mrclab.hosts.mrc.received import ReceiverBitmap
from mrclab.hosts.rdma.frames import PSN_HALF, PSN_MASK, expand, trailing_ones


def test_expand_wraps():
    near = (1 << 24) + PSN_MASK
    assert expand(0, near) - near == 1
    assert expand(PSN_MASK, near + 1) - (near + 1) == -1
    assert expand(PSN_HALF, 1 << 24) - (1 << 24) == -PSN_HALF


@given(st.integers(1 << 24, 1 << 40), st.integers(-PSN_HALF, PSN_HALF - 1))
def test_expand_undoes_wire(near, offset):
    assert expand((near + offset) & PSN_MASK, near) == near + offset


@given(st.integers(0, 1 << 200))
def test_trailing_ones(bits):
    text = bin(bits)[2:]
    assert trailing_ones(bits) == len(text) - len(text.rstrip("1"))


@given(st.integers(0), st.integers(1, 300))
def test_bitmap_equals_a_plain_set(seed, count):
    rng = random.Random(seed)
    first = (1 << 24) - 100  # the PSNs wrap in this run
    bitmap = ReceiverBitmap(first, 1024)
    have: set[int] = set()
    reported: set[int] = set()
    for _ in range(count):
        psn = min(bitmap.expected + int(rng.expovariate(1 / 60)), bitmap.expected + 1023)
        assert bitmap.locate(psn & PSN_MASK) == psn
        assert bitmap.is_new(psn) == (psn not in have)
        if psn not in have:
            have.add(psn)
            bitmap.add(psn)
        if rng.random() < 0.3:
            for offset, bits in bitmap.windows():
                reported_now = {bitmap.expected - 1 + offset + i for i in range(64) if bits >> i & 1}
                assert reported_now <= have
                reported |= reported_now
            cumulative = set(range(first, bitmap.expected))
            assert cumulative <= have
            assert reported | cumulative >= have, "something that arrived was never reported"
    expected = first
    while expected in have:
        expected += 1
    assert bitmap.expected == expected
    assert bitmap.out_of_order == sum(psn > expected for psn in have)


def test_each_sack_repeats_what_the_one_before_it_said():
    bitmap = ReceiverBitmap(100, 1024)
    seen = []
    for psn in (102, 104, 103, 160):
        bitmap.add(psn)
        ((offset, bits),) = bitmap.windows()
        seen.append({99 + offset + i for i in range(64) if bits >> i & 1})
    assert seen == [{102}, {102, 104}, {102, 103, 104}, {102, 103, 104, 160}]
