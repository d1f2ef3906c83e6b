"""The ICRC, compared with a slow, literal implementation of the RoCEv2 rule."""

import random
import zlib

from hypothesis import given
from hypothesis import strategies as st

from mrclab.hosts.rdma.frames import RESIDUE, packet_icrc, prefix_crc
from tests.support.mrc_sim import Network, Sim


def literal_crc(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0xEDB88320 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def literal_icrc(ipv6_udp: bytes, rest: bytes) -> bytes:
    """Return the CRC over 8 bytes of ones and the packet, with all fields that may change set to ones."""
    data = bytearray(ipv6_udp + rest)
    data[0] |= 0x0F
    data[1:4] = b"\xff" * 3
    data[7] = 0xFF
    data[46:48] = b"\xff\xff"
    data[48 + 4] = 0xFF
    return literal_crc(b"\xff" * 8 + bytes(data)).to_bytes(4, "little")


def test_literal_crc_is_the_well_known_one():
    assert literal_crc(b"123456789") == 0xCBF43926


@given(st.binary(min_size=48, max_size=48), st.binary(min_size=12, max_size=200))
def test_icrc_follows_the_rule(headers, rest):
    rest = rest[:4] + b"\0" + rest[5:]
    assert packet_icrc(headers, rest) == literal_icrc(headers, rest)


def test_whole_frames_carry_the_icrc_and_leave_the_residue():
    sim = Sim(seed=5, keep_frames=True, network=Network())
    region = sim.ends[1].register_memory(bytearray(9001))
    sim.ends[0].post_write(
        sim.qpns[0], 1, random.Random(1).randbytes(9001), region.address, region.rkey, imm=9
    )
    sim.run(1_000_000_000)
    assert len(sim.sightings) >= 4
    for seen in sim.sightings:
        inner, rest = seen.frame[54:102], seen.frame[102:]
        assert rest[-4:] == literal_icrc(inner, rest[:-4])
        assert zlib.crc32(rest, prefix_crc(inner)) == RESIDUE


def test_switches_may_rewrite_what_is_masked():
    sim = Sim(seed=5)
    region = sim.ends[1].register_memory(bytearray(100))
    sim.ends[0].post_write(sim.qpns[0], 1, b"z" * 100, region.address, region.rkey)
    ((port, frame),) = sim.ends[0].frames_to_send(sim.now_ns)
    changed = bytearray(frame)
    changed[38:54] = bytes(16)  # outer destination: switches shift it at every hop
    changed[15] |= 0x30  # CE
    changed[21] = changed[61] = 3  # hop limits
    changed[55] |= 0xF0  # inner traffic class
    changed[106] = 0x5A  # BTH reserved
    sim.ends[1].receive(port, bytes(changed), sim.now_ns)
    assert sim.ends[1].drops.total() == 0
    assert region.view == b"z" * 100


@given(st.integers(0, 8 * 1100 - 1))
def test_any_single_bit_error_in_what_is_covered_is_found(bit):
    sim = Sim(seed=5)
    region = sim.ends[1].register_memory(bytearray(998))
    sim.ends[0].post_write(sim.qpns[0], 1, b"z" * 998, region.address, region.rkey)
    ((port, frame),) = sim.ends[0].frames_to_send(sim.now_ns)
    at = 102 + bit // 8
    if at >= len(frame) or at == 106:
        return
    changed = bytearray(frame)
    changed[at] ^= 1 << bit % 8
    sim.ends[1].receive(port, bytes(changed), sim.now_ns)
    assert sim.ends[1].drops.bad_icrc == 1
    assert region.view == bytes(998)
