"""Frames that are too short, at endpoints that have cached the headers of an earlier frame."""

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mrclab.hosts.mrc import Endpoint as MrcEndpoint
from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.roce import Endpoint as RoceEndpoint
from tests.support.mrc_sim import address, port_addresses

ENDS = {
    "rocev2": lambda: RoceEndpoint(port_addresses(0, 1)),
    "mrc": lambda: MrcEndpoint(port_addresses(0, 1)),
    "mrc-ecmp": lambda: MrcEndpoint(port_addresses(0, 1), MrcConfig(ev_mode="ecmp")),
    "mrc-structured": lambda: MrcEndpoint(port_addresses(0, 1), MrcConfig(ev_mode="structured")),
}
TRIMMED = MrcConfig().dscp.trimmed


def headers(udp_length: int, dscp: int = 0, *, outer: bool = True) -> bytes:
    """Return the headers before the BTH of a frame to port 0, with this UDP length."""
    first, source, target = 6 << 28 | dscp << 22, address(1, 0), address(0, 0)
    inner = struct.pack(">IHBB16s16s", first, udp_length, 17, 64, source, target)
    around = struct.pack(">IHBB16s16s", first, udp_length + 40, 41, 64, source, bytes(16)) if outer else b""
    return bytes(12) + b"\x86\xdd" + around + inner + struct.pack(">HHHH", 0xC000, 4791, udp_length, 0)


@pytest.mark.parametrize("dscp", [0, TRIMMED])
@pytest.mark.parametrize("kind", ENDS)
def test_a_frame_that_ends_within_the_bth_is_too_short(kind, dscp):
    """One of the frames has consistent headers. Their UDP length of 11 leaves three bytes for the BTH."""
    end = ENDS[kind]()
    whole = headers(11, dscp) + bytes(16)
    end.receive(0, whole, 0)
    assert (end.drops.total(), end.drops.too_short) == (1, 0)
    for length in range(78, len(whole)):
        end.receive(0, whole[:length], 0)
    assert (end.drops.total(), end.drops.too_short) == (1 + 40, 40)


@settings(max_examples=200, deadline=None)
@given(
    kind=st.sampled_from(sorted(ENDS)),
    outer=st.booleans(),
    udp_length=st.integers(0, 80),
    dscp=st.sampled_from([0, TRIMMED, MrcConfig().dscp.trimmed_lasthop]),
    filling=st.sampled_from([0x00, 0x06, 0x11, 0xC6, 0xFF]),
    lengths=st.lists(st.integers(0, 180), max_size=8),
)
@example(kind="rocev2", outer=True, udp_length=11, dscp=0, filling=0, lengths=[105])
@example(kind="mrc-ecmp", outer=True, udp_length=11, dscp=0, filling=0, lengths=[105])
@example(kind="mrc-ecmp", outer=True, udp_length=40, dscp=TRIMMED, filling=0, lengths=[102, 113])
def test_no_length_of_a_known_flow_makes_the_core_stumble(kind, outer, udp_length, dscp, filling, lengths):
    end = ENDS[kind]()
    whole = headers(udp_length, dscp, outer=outer) + bytes([filling]) * 120
    for length in (len(whole), *lengths):
        end.receive(0, whole[:length], 0)
    assert end.drops.total() == 1 + len(lengths)
