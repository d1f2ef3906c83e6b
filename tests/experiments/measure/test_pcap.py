from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.experiments.measure.pcap import parse_pcap, read_pcap
from mrclab.linux.errors import InputError
from tests.support.synthetic_run import OFFSET_NS, PROBE, SACK, Mrc, Record, pcap

CONTAINER = 0xFCBBBB00_0401_0802_0403_0C01_0000_0000 << 0


def one(packet: Mrc, **more: object) -> np.void:
    packets = parse_pcap(pcap([Record(1_000, packet, outgoing=True, **more)]))  # type: ignore[arg-type]
    assert len(packets.rows) == 1
    return packets.rows[0]


def test_every_field_of_a_write_is_read() -> None:
    row = one(
        Mrc(
            opcode=0xC7,
            psn=0xABCDEF,
            ev=0x0003_C01F,
            rtx=True,
            payload=4096,
            outer=CONTAINER,
            src=0xFD00 << 112 | 5,
            dst=0xFD00 << 112 | 9,
            qp=0x123456,
            dscp=10,
            ecn=3,
        ),
        ifindex=77,
    )
    assert row["t_ns"] == OFFSET_NS + 1_000
    assert row["outgoing"]
    assert row["ifindex"] == 77
    assert int(row["outer_hi"]) << 64 | int(row["outer_lo"]) == CONTAINER
    assert (int(row["src_hi"]), int(row["src_lo"]), int(row["dst_lo"])) == (0xFD00 << 48, 5, 9)
    assert (row["dscp"], row["ecn"]) == (10, 3)
    assert row["ev"] == 0x0003_C01F
    assert row["opcode"] == 0xC7
    assert row["psn"] == 0xABCDEF
    assert row["rtx"]
    assert row["qp"] == 0x123456
    assert row["payload"] == 4096
    assert not row["trimmed"]


@pytest.mark.parametrize("opcode", [0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xCB])
@pytest.mark.parametrize("stamped", [False, True])
def test_payload_leaves_out_every_header(opcode: int, stamped: bool) -> None:
    assert one(Mrc(opcode=opcode, payload=777, stamped=stamped, outer=1))["payload"] == 777


@pytest.mark.parametrize("stamped", [False, True])
def test_a_trimmed_write_is_seen_as_such(stamped: bool) -> None:
    row = one(Mrc(payload=777, trim=True, stamped=stamped, outer=1))
    assert row["trimmed"]
    assert row["payload"] == 0


def test_a_write_of_no_bytes_is_not_trimmed() -> None:
    assert not one(Mrc(payload=0, outer=1))["trimmed"]


def test_without_an_outer_header_and_with_an_srh() -> None:
    plain = one(Mrc(psn=5, outer=None, dst=42))
    assert (plain["psn"], plain["outer_lo"], plain["payload"]) == (5, 42, 1000)
    srh = struct.pack("!BBBBBBH", 41, 4, 4, 1, 1, 0, 0) + bytes(32)
    routed = one(Mrc(psn=6, outer=7, dst=42, srh=srh))
    assert (routed["psn"], routed["outer_lo"], routed["dst_lo"], routed["payload"]) == (6, 7, 42, 1000)


def test_a_sack_names_the_packet_that_it_answers() -> None:
    row = one(Mrc(opcode=SACK, cack=2, ack_offset=-5, echo_ev=0x0002_C003, outer=1))
    assert row["echo_ev"] == 0x0002_C003
    assert row["echo_psn"] == (2 - 5) % (1 << 24)
    assert not row["probe_reply"]
    assert one(Mrc(opcode=SACK, probe_reply=True, outer=1))["probe_reply"]


def test_data_is_told_from_control() -> None:
    kinds = [0xC6, 0xCB, 0xC5, 0xCC, PROBE, SACK, 0xD1]
    packets = parse_pcap(pcap([Record(i, Mrc(opcode=k, outer=1), True) for i, k in enumerate(kinds)]))
    assert packets.is_data.tolist() == [True, True, False, False, False, False, False]


def test_direction_and_byte_order() -> None:
    records = [Record(1, Mrc(outer=1), True), Record(2, Mrc(outer=1), False)]
    for order in "<", ">":
        packets = parse_pcap(pcap(records, order=order))
        assert packets.rows["outgoing"].tolist() == [True, False]
        assert packets.rows["t_ns"].tolist() == [OFFSET_NS + 1, OFFSET_NS + 2]


def test_microsecond_and_ethernet_captures_are_read() -> None:
    frame = bytes(12) + b"\x86\xdd" + Mrc(psn=9, outer=1).frame()
    head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
    packets = parse_pcap(head + struct.pack("<IIII", 3, 250_001, len(frame), len(frame)) + frame)
    assert packets.rows["t_ns"].tolist() == [3_250_001_000]
    assert (packets.rows["psn"][0], packets.rows["payload"][0]) == (9, 1000)


def test_what_is_not_mrc_is_counted_and_left_out() -> None:
    class Other(Mrc):
        def frame(self) -> bytes:
            return (
                bytes.fromhex("6000000000083aff") + bytes(32) + b"\x88" + bytes(7)
            )  # a neighbour advertisement

    packets = parse_pcap(
        pcap(
            [
                Record(1, Mrc(outer=1), True),
                Record(2, Other(), False),
                Record(3, Mrc(dport=53, outer=1), True),
            ]
        )
    )
    assert (packets.records, packets.skipped, len(packets.rows)) == (3, 2, 1)


@given(cut=st.integers(min_value=24))
def test_a_capture_cut_anywhere_yields_its_whole_records(cut: int) -> None:
    data = pcap([Record(i, Mrc(psn=i, outer=1), True) for i in range(5)])
    length = (len(data) - 24) // 5
    cut = 24 + (cut - 24) % (len(data) - 24 + 1)
    packets = parse_pcap(data[:cut])
    assert packets.rows["psn"].tolist() == list(range((cut - 24) // length))
    assert packets.truncated == ((cut - 24) % length != 0)


@given(st.binary(max_size=400), st.integers(0, 1 << 32))
def test_garbage_never_does_more_than_raise_input_error(body: bytes, length: int) -> None:
    head = pcap([]) + struct.pack("<IIII", 0, 0, min(length, len(body)), length & 0xFFFFFFFF)
    packets = parse_pcap(head + body)
    assert packets.records == len(packets.rows) + packets.skipped


def test_what_is_no_capture_is_refused_in_one_line(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "x.pcap"
    cases = {
        b"": "shorter than a pcap header",
        b"\x0a\x0d\x0d\x0a" + bytes(40): "not a pcap capture",
        struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 1, 105): "link type 105",
    }
    for data, words in cases.items():
        file.write_bytes(data)
        with pytest.raises(InputError, match=words) as caught:
            read_pcap(file)
        assert str(caught.value).startswith(f"{file}: ")
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="cannot read the capture"):
        read_pcap(tmp_path / "none.pcap")


@pytest.mark.slow
def test_a_million_packets_are_read_whole() -> None:
    block = pcap([Record(i * 1000, Mrc(psn=i, outer=1), True) for i in range(10_000)])
    data = block + block[24:] * 99
    assert len(parse_pcap(data).rows) == 1_000_000
