"""Every header, compared with bytes written by hand from the specification's tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.hosts.mrc import wire
from mrclab.hosts.rdma import frames


def test_bth_bytes():
    header = wire.Bth(
        0xC8, 0x123456, 0xABCDEF, ack_request=True, retransmission=True, timestamp=True, pad_count=3
    )
    assert header.pack() == bytes.fromhex("c8 30 ffff 00 123456 b0 abcdef")
    assert wire.Bth.unpack(header.pack()) == header


def test_bth_flags_sit_in_bits_7_5_and_4_of_byte_8():
    assert wire.Bth(0xC6, 1, 0, ack_request=True).pack()[8] == 0x80
    assert wire.Bth(0xC6, 1, 0, retransmission=True).pack()[8] == 0x20
    assert wire.Bth(0xC6, 1, 0, timestamp=True).pack()[8] == 0x10


def test_meth_tseth_reth_bytes():
    assert wire.Meth(rqmsn=0x0102, msn=0x0304).pack() == bytes.fromhex("0102 0304")
    assert wire.Tseth(0xBEEF, tsr=1).pack() == bytes.fromhex("beef 8001")
    reth = wire.Reth(0x1122334455667788, 0x99AABBCC, 0x00100000)
    assert reth.pack() == bytes.fromhex("1122334455667788 99aabbcc 00100000")
    assert wire.Reth.unpack(b"xx" + reth.pack(), 2) == reth


def test_aeth_has_constant_credits():
    assert wire.Aeth(msn=0x000102).pack() == bytes.fromhex("1f 000102")


def test_sack_is_seth_and_cc_state_36_bytes():
    sack = wire.Sack(
        cack_psn=0x0A0B0C,
        entropy=0xDEADBEEF,
        ack_psn_offset=-2,
        mark=wire.EvMark.SKIP_ONCE,
        probe_reply=True,
        sack_offset=1,
        bitmap=0x8000000000000005,
        spdcid=0x1111,
        dpdcid=0x2222,
        cc_type=1,
        cc_flags=2,
        mpr=8,
        tx_timestamp=0x3333,
        ooo_count=0x0444,
        restore_cwnd=True,
        rcv_cwnd_pen=64,
        rcvd_units=0x0A0B0C,
    )
    expected = bytes.fromhex(
        "0022 fffe deadbeef 1111 2222 00 0a0b0c 12 08 0001 8000000000000005"  # SETH, 28
        "3333 0444 c0 0a0b0c"  # CC_STATE, 8
    )
    assert len(expected) == 36
    assert sack.pack() == expected
    assert wire.Sack.unpack(expected) == wire.Sack(**{**_fields(sack), "mark": 1})


def _fields(header):
    return {name: getattr(header, name) for name in header.__dataclass_fields__}


def test_sack_mark_is_in_bits_6_and_5_of_byte_1():
    marks = [wire.Sack(0, 0, mark=m).pack()[:2] for m in (0, 1, 2)]
    assert marks == [b"\x00\x00", b"\x00\x20", b"\x00\x40"]


def test_nack_is_20_bytes():
    nack = wire.Nack(0x01, 0xDEADBEEF, 0x0A0B0C, 0x1111, 0x2222, 3, 0x4444, 0x55)
    assert nack.pack() == bytes.fromhex("0000 01 55 deadbeef 1111 2222 00 0a0b0c 23 00 4444")
    assert len(nack.pack()) == 20
    assert wire.Nack.unpack(nack.pack()) == nack


def test_probe_is_16_bytes():
    probe = wire.Probe(0x0102, 0x1111, 0x2222, 0x3333, 0x44)
    assert probe.pack() == bytes.fromhex("0000 00 44 0102 0000 1111 2222 3333 0001")
    assert wire.Probe.unpack(probe.pack()) == probe


def test_endpoint_request_is_16_bytes_and_response_36_with_its_timestamp_at_28():
    request = wire.EndpointRequest(wire.EndpointOp.EV_PROBE, 0x0000000D, 0x1234, 0x55)
    assert request.pack() == bytes.fromhex("0001 00 55 0000000d 00000000 1234 0001")
    assert wire.EndpointRequest.unpack(request.pack()) == request
    response = wire.EndpointResponse(1, 0x1234)
    assert response.pack() == bytes.fromhex("0004 0000" + 24 * "00" + "1234 0000 00000000")
    assert wire.EndpointResponse.unpack(response.pack()) == response


def test_opcodes():
    codes = {op.name: op.value for op in wire.Opcode}
    assert codes == {
        "WRITE_FIRST": 0xC6,
        "WRITE_MIDDLE": 0xC7,
        "WRITE_LAST": 0xC8,
        "WRITE_LAST_IMM": 0xC9,
        "WRITE_ONLY": 0xCA,
        "WRITE_ONLY_IMM": 0xCB,
        "ACKNOWLEDGE": 0xD1,
        "ENDPOINT_REQUEST": 0xD8,
        "ENDPOINT_RESPONSE": 0xD9,
        "SACK": 0xDC,
        "NACK": 0xDD,
        "PROBE_REQUEST": 0xDE,
    }


@pytest.mark.parametrize(("low", "expected"), [(True, (0x5678, 0x1234)), (False, (0x1234, 0x5678))])
def test_ev_is_striped_over_udp_source_port_and_flow_label(low, expected):
    halves = wire.split_ev(0x12345678, low_half_in_udp=low)
    assert halves == expected
    assert wire.join_ev(*halves, low_half_in_udp=low) == 0x12345678


def test_join_ev_ignores_the_flow_labels_upper_four_bits():
    assert wire.join_ev(0x5678, 0xF1234) == 0x12345678


def test_timestamp_counts_128_ns():
    assert [wire.timestamp(t) for t in (127, 128, 128 << 16, (128 << 16) + 300)] == [0, 1, 0, 2]


HEADERS = [
    wire.Bth,
    wire.Meth,
    wire.Tseth,
    wire.Reth,
    wire.Aeth,
    wire.Sack,
    wire.Nack,
    wire.Probe,
    wire.EndpointRequest,
    wire.EndpointResponse,
]


@pytest.mark.parametrize("header", HEADERS)
@given(data=st.binary(max_size=64), offset=st.integers(-2, 70))
def test_parsers_take_any_bytes(header, data, offset):
    try:
        parsed = header.unpack(data, offset)
    except frames.WireError:
        assert offset < 0 or len(data) - offset < 36
    else:
        size = len(parsed.pack())
        assert len(data) - offset >= size
