"""The Wireshark dissector shows the encoded value of every field in frames of our encoder."""

from pathlib import Path

import pytest

from mrclab.hosts.mrc import wire
from mrclab.hosts.rdma import frames
from tests.support.mrc_packets import (
    DSCP,
    EV,
    LINKTYPE_ETHERNET,
    LINKTYPE_SLL2,
    Packet,
    data_packet,
    every_packet,
    frame_of,
    write_pcap,
)
from tests.support.tshark import fields_of, registered_fields, require_tshark, tshark

pytestmark = pytest.mark.slow

CHECK_ICRC = ("-o", "mrc.icrc:Every packet (slow)")
ALWAYS: dict[str, int | str | bool] = {"mrc.ev": EV, "mrc.ev.plane": 3, "mrc.ev.uplink": 5}
EXPERTS = ("rtx", "ce", "mark", "trimmed", "nack", "fatal", "icrc", "short")


@pytest.fixture(autouse=True)
def _tshark() -> None:
    require_tshark()


def read(value: str, like: int | str | bool) -> int | str | bool:
    """Return a printed value in the type of ``like``. Wireshark before 4.2 prints booleans as 0 and 1."""
    if isinstance(like, bool):
        return {"0": False, "1": True, "False": False, "True": True}[value]
    return int(value, 0) if isinstance(like, int) else value


@pytest.mark.parametrize("linktype", [LINKTYPE_ETHERNET, LINKTYPE_SLL2])
def test_every_field_has_the_value_that_went_in(tmp_path: Path, linktype: int) -> None:
    packets = every_packet()
    capture = tmp_path / "all.pcap"
    write_pcap(capture, [p.frame for p in packets], linktype)
    names = sorted({name for p in packets for name in p.fields} | set(ALWAYS))
    for packet, found in zip(packets, fields_of(capture, names, *CHECK_ICRC), strict=True):
        expected = {n: v for n, v in (packet.fields | ALWAYS).items() if v != ""}
        assert set(found) == set(expected), packet.name
        for name, value in expected.items():
            assert read(found[name], value) == value, (packet.name, name)


def test_the_packets_above_have_every_field_that_there_is() -> None:
    shown = {name for p in every_packet() for name in p.fields} | set(ALWAYS)
    assert registered_fields("mrc") == shown - {"mrc.payload", "mrc.pad"}
    opcodes = {p.fields["mrc.bth.opcode"] for p in every_packet()}
    assert opcodes == {int(opcode) for opcode in wire.Opcode}


def test_nothing_is_malformed_and_experts_say_what_happened(tmp_path: Path) -> None:
    packets = every_packet()
    capture = tmp_path / "all.pcap"
    write_pcap(capture, [p.frame for p in packets])
    assert tshark("-r", str(capture), "-Y", "_ws.malformed || _ws.expert.group == Malformed") == ""
    names = [f"mrc.expert.{name}" for name in EXPERTS]
    for packet, found in zip(packets, fields_of(capture, names, *CHECK_ICRC), strict=True):
        assert set(found) == packet.expert, packet.name


def test_the_container_is_a_list_of_planes_roles_and_indices(tmp_path: Path) -> None:
    capture = tmp_path / "sids.pcap"
    frame = data_packet(wire.Opcode.WRITE_ONLY, 8).frame
    # The same frame after its first hop: the first uSID is removed, and the others moved up.
    shifted = frame[:42] + frame[44:54] + b"\0\0" + frame[54:]
    write_pcap(capture, [frame, shifted])
    names = ["mrc_usid.block", "mrc_usid.usid", "mrc_usid.plane", "mrc_usid.role", "mrc_usid.index"]
    whole, rest = fields_of(capture, [*names, "mrc_usid.left"])
    assert whole["mrc_usid.block"] == "fcbb:bb00::/32"
    assert [int(v, 16) for v in whole["mrc_usid.usid"].split(",")] == [0x3400, 0x3803, 0x3403, 0x3C06]
    assert whole["mrc_usid.plane"] == "3,3,3,3"
    assert whole["mrc_usid.role"] == "1,2,1,3"
    assert whole["mrc_usid.index"] == "0,3,3,6"
    assert (whole["mrc_usid.left"], rest["mrc_usid.left"]) == ("4", "3")
    assert rest["mrc_usid.index"] == "3,3,6"
    other = fields_of(capture, ["mrc_usid.usid", "mrc.bth.psn"], "-o", "mrc_usid.block:fc00:1")
    assert other == [{"mrc.bth.psn": str(0xFFFFFE)}] * 2


def test_options_name_the_port_and_the_half_of_the_ev(tmp_path: Path) -> None:
    middle = wire.Bth(wire.Opcode.ACKNOWLEDGE, 1, 2).pack() + wire.Aeth(3).pack()
    options = {"dscp": DSCP.control, "ev": 0xC005_0003}
    capture = tmp_path / "ports.pcap"
    write_pcap(
        capture,
        [
            frame_of(middle, **options, udp_port=4971),
            frame_of(middle, **options, udp_port=4972),
            frame_of(middle, **options, low_half_in_udp=False),
        ],
    )
    by_default, elsewhere, swapped = fields_of(capture, ["mrc.ev"])
    assert (by_default["mrc.ev"], elsewhere, swapped["mrc.ev"]) == ("0xc0050003", {}, "0x0003c005")
    by_default, elsewhere, swapped = fields_of(
        capture, ["mrc.ev"], "-o", "mrc.ports:4791,4972", "-o", "mrc.ev_half:Bits 31:16 (high)"
    )
    assert (by_default, elsewhere["mrc.ev"], swapped["mrc.ev"]) == ({}, "0x0003c005", "0xc0050003")


def test_rocev2_on_the_same_port_stays_with_wireshark(tmp_path: Path) -> None:
    send_only = wire.Bth(0x04, 1, 2).pack() + b"hello world!"  # RC SEND Only
    capture = tmp_path / "roce.pcap"
    write_pcap(capture, [frame_of(send_only, dscp=0)])
    (found,) = fields_of(capture, ["mrc.ev", "infiniband.bth.opcode"])
    assert found == {"infiniband.bth.opcode": "4"}


def test_a_source_port_of_some_service_is_an_ev_all_the_same(tmp_path: Path) -> None:
    middle = wire.Bth(wire.Opcode.ACKNOWLEDGE, 1, 2).pack() + wire.Aeth(3).pack()
    frames = [frame_of(middle, dscp=DSCP.control, ev=port) for port in (7, 53, 4791)]
    query = bytes.fromhex("1234 0100 0001 0000 0000 0000 036d7263 00 0001 0001")
    # A packet with the same UDP source port to another service must still be shown as DNS.
    dns = frame_of(query, dscp=0, ev=53, udp_port=40000)
    capture = tmp_path / "services.pcap"
    write_pcap(capture, [*frames, dns])
    found = fields_of(capture, ["mrc.ev", "dns.qry.name"])
    assert found == [
        {"mrc.ev": "0x00000007"},
        {"mrc.ev": "0x00000035"},
        {"mrc.ev": "0x000012b7"},
        {"dns.qry.name": "mrc"},
    ]


def test_a_wrong_icrc_is_shown(tmp_path: Path) -> None:
    frame = bytearray(data_packet(wire.Opcode.WRITE_ONLY, 8).frame)
    frame[-10] ^= 1
    marked = bytearray(data_packet(wire.Opcode.WRITE_ONLY, 8).frame)
    marked[106] = 0x5A  # the ICRC does not include the BTH's reserved byte
    capture = tmp_path / "icrc.pcap"
    write_pcap(capture, [bytes(frame), bytes(marked)])
    names = ["mrc.icrc.status", "mrc.expert.icrc"]
    bad, good = fields_of(capture, names, *CHECK_ICRC)
    assert (bad["mrc.icrc.status"], good["mrc.icrc.status"]) == ("bad", "good")
    assert "mrc.expert.icrc" in bad
    assert "mrc.expert.icrc" not in good
    unchecked, _ = fields_of(capture, names)
    assert unchecked == {"mrc.icrc.status": "unchecked"}


def shorter(packet: Packet, length: int) -> bytes:
    """Return a shorter packet with correct lengths, as if the sender (not the capture) made it shorter."""
    middle = packet.frame[frames.BTH_OFFSET : frames.BTH_OFFSET + length]
    return frame_of(middle, dscp=DSCP.control)


def test_packets_that_end_in_a_header_are_shown_and_break_nothing(tmp_path: Path) -> None:
    cut = [
        shorter(packet, length)
        for packet in every_packet()
        if not packet.fields["mrc.trimmed"]
        for length in range(frames.BTH_LEN, frames.BTH_LEN + len(packet.extension))
    ]
    capture = tmp_path / "short.pcap"
    write_pcap(capture, cut)
    assert all("mrc.expert.short" in found for found in fields_of(capture, ["mrc.expert.short"]))


def test_the_info_column_reads_well(tmp_path: Path) -> None:
    capture = tmp_path / "info.pcap"
    write_pcap(capture, [p.frame for p in every_packet()])
    lines = [row["_ws.col.Info"] for row in fields_of(capture, ["_ws.col.Info"])]
    write = "MSN 65244 VA 0xfedcba9876543210"
    assert (
        f"WRITE_MIDDLE QP 0x00abcd PSN 16777214 {write}, 4096 of 1000000 B, EV 0x0003c005 [rtx] [CE]" in lines
    )
    assert (
        "SACK QP 0x00abcd cumulative 16777212 + 16777214-0,2-3,5,61 for EV 0xdeadbeef SKIP_ONCE,"
        " EV 0x0003c005" in lines
    )
    assert "NACK QP 0x00abcd TRIMMED: PSN 1193046 on EV 0x0003c005, EV 0x0003c005" in lines
