"""Checksums: a frame computed by hand by RFC 1071, and random frames compared with the interpreter."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.switches.hashes import HASHES
from mrclab.switches.p4_model import Interpreter
from mrclab.switches.v1model.bmv2_json import read_program
from tests.support.switch_bench import EXAMPLES, Bench, bench_of
from tests.support.switch_fixtures import TARGETS
from tests.support.switch_kit import (
    DATA,
    Namespace,
    compare_frames,
    read_p4info,
    three_ports,
)

pytestmark = pytest.mark.parallel

PROGRAM = DATA / "checksums.json"
# A common example of an IPv4 checksum, b861, and the same header one hop later, with b961.
IPV4 = bytes.fromhex("45000073000040004011b861c0a80001c0a800c7")
IPV4_ONE_HOP_ON = bytes.fromhex("45000073000040003f11b961c0a80001c0a800c7")


def key(kind: int, note: int = 0, cut: int = 0, fixed: int = 0) -> bytes:
    return struct.pack("!BBHHB", kind, note, cut, fixed, 0)


def frame(kind: int, wrong: int, note: int, cut: int, payload: bytes) -> bytes:
    """Return a frame. The bits of ``wrong`` make checksums wrong: 1 for IPv4, 2 for UDP, 4 for `key`."""
    ipv4 = bytearray(IPV4)
    ipv4[10] ^= wrong & 1
    odd = b"\xa5\x5a\x77"
    start = struct.pack("!HHH", 1234, 7, 8 + len(payload))
    carried = {2: b"", 3: bytes(ipv4[12:20]), 4: odd}.get(kind, b"")
    right = HASHES["csum16"](carried + b"\x00\x11" + start + payload)
    udp = start + struct.pack("!H", right ^ (wrong & 2))
    head = {1: bytes(ipv4), 2: udp, 3: bytes(ipv4) + udp, 4: odd + udp}.get(kind, b"")
    fixed = HASHES["crc16"](struct.pack("!BH", kind, cut)) ^ (wrong & 4)
    return key(kind, note, cut, fixed) + head + payload


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    yield from bench_of(PROGRAM)


def test_an_ipv4_header_is_verified_and_updated_as_the_rfc_says() -> None:
    model = Interpreter(read_program(PROGRAM.read_bytes()))
    ((port, out),) = model.run(1, key(1) + IPV4 + b"rest")
    assert (port, out[1], out[7:]) == (2, 0, IPV4_ONE_HOP_ON + b"rest")
    ((_, out),) = model.run(1, key(1) + IPV4[:-1] + b"\x00")
    assert out[1] == 1
    # The payload has an odd length, and removed bytes are not in the sum.
    for cut in (0, 3):
        sent = frame(2, 0, 0, cut, b"\x12\x34\x56\x78\x9a")
        ((_, out),) = model.run(1, sent)
        assert out[1] == 0
        rest = sent[15:][: cut or None]
        expected = HASHES["csum16"](b"\x00\x11" + sent[7:13] + rest)
        assert cut or out[13:15] == struct.pack("!H", expected)


@pytest.mark.root
@EXAMPLES
@given(
    kind=st.integers(0, 6) | st.just(9),
    wrong=st.sampled_from([0, 0, 1, 2, 4]),
    note=st.integers(0, 1),
    cut=st.just(0) | st.integers(40, 700),
    payload=st.binary(max_size=30)
    | st.integers(0, 1400).map(lambda n: bytes(i * 37 & 0xFF for i in range(n))),
    short=st.just(0) | st.integers(0, 20),
)
def test_checksums_are_those_of_the_interpreter(
    bench: Bench, kind: int, wrong: int, note: int, cut: int, payload: bytes, short: int
) -> None:
    whole = frame(kind, wrong, note, cut, payload)
    whole = whole[: max(len(whole) - short, 0)]
    if len(whole) >= 14:  # the kernel accepts no shorter frame for a test run
        bench.compare(whole)


@pytest.mark.root
@pytest.mark.parametrize("choice", TARGETS)
def test_checksums_on_real_ports(choice: str, namespace: Namespace, tmp_path: Path) -> None:
    rng = random.Random(3)
    with three_ports(choice, namespace, tmp_path) as client:
        client.become_primary()
        client.set_pipeline(PROGRAM.read_bytes(), read_p4info(DATA / "checksums.p4info.txtpb"))
        frames = [
            frame(kind, wrong, note, cut, rng.randbytes(size))
            for kind in (1, 2, 3, 4, 5, 9)
            for wrong, note, cut, size in (
                (0, 0, 0, 60),
                (1, 1, 0, 1501),
                (2, 0, 61, 333),
                (4, 1, 0, 4096),
            )
        ]
        frames += [frame(3, 0, 0, 0, rng.randbytes(8_901))]
        compare_frames(namespace, Interpreter(read_program(PROGRAM.read_bytes())), frames)
