"""Whole control packets of an endpoint, from the BTH up to the ICRC (excluded), byte for byte.

The expected bytes were written by hand from the layouts in the specification's tables.
"""

import pytest

from mrclab.hosts.mrc.wire import NackReason, Opcode
from mrclab.hosts.rdma.frames import BTH_OFFSET
from tests.support.mrc_pair import T_SENT, Pair, body, reseal
from tests.support.mrc_sim import ev_value, mark_ce, trim


def laid_out(*fields):
    """Join fields of hexadecimal digits, and remove the spaces."""
    return "".join(fields).replace(" ", "")


def bth(opcode, qpn, psn, flags=0, second=0):
    # opcode, byte 1, P_Key, reserved byte and destination QP, flags, PSN
    return f"{opcode:02x} {second:02x} ffff 00{qpn:06x} {flags:02x} {psn & 0xFFFFFF:06x}"


def ev_of(frame):
    return int.from_bytes(frame[56:58] + frame[94:96], "big")


@pytest.mark.parametrize("timestamps", [True, False])
def test_data_of_three_messages(timestamps):
    pair = Pair(timestamps=timestamps)
    pair.post(5000, va=0x10, wr_id=1)
    pair.post(100, imm=0xCAFE_F00D, va=0x2000, wr_id=2)
    pair.post(1, imm=7, va=0x3000, wr_id=3)
    frames = [body(frame) for _, frame in pair.send()]
    ts = 0x10 if timestamps else 0
    stamp = "1234 0001" if timestamps else ""  # tsr 0, ftype 1
    address, rkey = pair.region.address, f"{pair.region.rkey:08x}"

    def expected(opcode, n, flags, second, meth, va, length, rest):
        head = bth(opcode, pair.qpn_b, pair.psn + n, flags | ts, second)
        reth = f"{address + va:016x} {rkey} {length:08x}"  # packet's address, message's length
        return laid_out(head, meth, stamp, reth, rest)

    assert frames == [
        expected(0xC6, 0, 0x00, 0x00, "0000 0000", 0x10, 5000, 4096 * "00"),
        expected(0xC8, 1, 0x80, 0x00, "0000 0000", 0x10 + 4096, 5000, 904 * "00"),
        expected(0xCB, 2, 0x80, 0x00, "0000 0001", 0x2000, 100, "cafef00d" + 100 * "00"),
        # RQMSN counts only the messages with immediate. There are three bytes of padding.
        expected(0xCB, 3, 0x80, 0x30, "0001 0002", 0x3000, 1, "00000007" + 4 * "00"),
    ]


@pytest.mark.parametrize("timestamps", [True, False])
def test_bth_r_is_sent_as_0_and_says_nothing(timestamps):
    pair = Pair(timestamps=timestamps)
    pair.post(2 * 4096)
    (port, first), second = pair.send()
    with_r = bytearray(first)
    with_r[BTH_OFFSET + 8] |= 0x40
    assert pair.take([(port, reseal(bytes(with_r)))]) == [], "half of the bytes that call for a SACK"
    (sack,) = pair.take([second])
    assert body(sack)[:48] == laid_out(
        bth(0xDC, pair.qpn_a, pair.psn + 1), "0000 0000", f"{ev_of(second[1]):08x}", pair.ids
    )
    assert not any(frame[BTH_OFFSET + 8] & 0x40 for frame in (first, second[1], sack))


def test_a_timestamp_of_the_senders_own_unit_is_echoed_as_it_came():
    pair = Pair()
    pair.post(100)
    ((port, data),) = pair.send()
    own = bytearray(data)
    own[BTH_OFFSET + 16 : BTH_OFFSET + 20] = bytes.fromhex("beef 8001")  # tsr 1
    (sack,) = pair.take([(port, reseal(bytes(own)))])
    assert body(sack)[80:84] == "beef"


def test_sack_of_a_marked_packet():
    pair = Pair()
    pair.post(3000)
    ((port, data),) = pair.send()
    (sack,) = pair.take([(port, mark_ce(data))])
    assert (
        body(sack)
        == laid_out(
            bth(0xDC, pair.qpn_a, pair.psn),
            "0020",  # type 0, next 0, M = 1 (SKIP_ONCE) in bits 6:5, pr 0
            "0000",  # ack_psn_offset: the cumulative PSN triggered the SACK
            f"{ev_of(data):08x}",
            pair.ids,  # low halves of the requester's and the responder's QPN
            "00",
            f"{pair.psn:06x}",
            "00",  # cc_type 0, cc_flags 0
            "00",  # mpr: dynamic MPR is off
            "0001",  # sack_offset
            "0000000000000000",  # bitmap
            "1234",  # echoed timestamp
            "0000",  # nothing out of order
            "00",  # no restore_cwnd, no rcv_cwnd_pen
            sack[-7:-4].hex(),  # rcvd_bytes, which the tests of NSCC check
        )
    )


def test_sack_of_a_hole():
    pair = Pair(sack_threshold_bytes=1)
    pair.post(5 * 4096)
    frames = pair.send()
    (sack,) = pair.take(frames[3:4])
    assert body(sack)[:88] == laid_out(
        bth(0xDC, pair.qpn_a, pair.psn - 1),
        "0000 0004",  # ack_psn_offset: 4 after the cumulative PSN
        f"{ev_of(frames[3][1]):08x}",
        pair.ids,
        f"00 {pair.psn - 1 & 0xFFFFFF:06x} 00 00",
        "0001 0000000000000008",  # bit 3, counted from 1 after the cumulative PSN
        "1234 0001",  # one packet out of order
    )


def test_answer_to_a_probe():
    pair = Pair(ack_timeout_exponent=13)
    pair.post(100)
    pair.send()
    later = pair.a.next_timer()
    pair.a.handle_timer(later)
    ((probe_port, probe),) = pair.send(later)
    stamp = f"{later // 128 & 0xFFFF:04x}"
    assert body(probe) == laid_out(
        bth(0xDE, pair.qpn_b, 0),  # a probe's PSN is reserved
        "0000 00 00",  # type, next, reserved; reserved; vendor byte
        "0001 0000",  # probe_id, reserved
        pair.ids,
        stamp,
        "0001",  # tsr 0, reserved, ftype 1
    )
    (answer,) = pair.take([(probe_port, probe)], later)
    assert body(answer)[:90] == laid_out(
        bth(0xDC, pair.qpn_a, pair.psn - 1),
        "0002",  # pr in bit 1
        "0001",  # probe_id, where other SACKs have ack_psn_offset
        f"{ev_of(probe):08x}",
        pair.ids,
        f"00 {pair.psn - 1 & 0xFFFFFF:06x} 00 00 0001 0000000000000000",
        f"{stamp} 0000 00",  # echoed timestamp, nothing out of order, no penalty
    )


@pytest.mark.parametrize(
    ("timestamps", "last_hop", "echo"),
    [(True, False, "1234"), (True, True, "1234"), (False, False, "0000")],
)
def test_nack_of_a_trimmed_packet_echoes_its_timestamp(timestamps, last_hop, echo):
    pair = Pair(timestamps=timestamps)
    pair.post(3000)
    ((port, data),) = pair.send()
    (nack,) = pair.take([(port, trim(data, last_hop=last_hop))], T_SENT + 500_000)
    assert body(nack) == laid_out(
        bth(0xDD, pair.qpn_a, pair.psn),
        "0000",  # type, next, reserved
        "02 00" if last_hop else "01 00",  # reason, vendor byte
        f"{ev_of(data):08x}",
        pair.ids,
        f"00 {pair.psn:06x}",
        "20 00",  # cc_type 2, cc_flags 0; reserved
        echo,
    )


def test_nack_of_a_write_that_is_not_allowed_echoes_its_timestamp():
    pair = Pair()
    pair.post(100, va=1 << 20)
    (nack,) = pair.take(pair.send())
    assert nack[BTH_OFFSET + 14] == NackReason.UNEXP_EVENT
    assert body(nack)[-4:] == "1234"


def test_transport_ack_counts_messages():
    pair = Pair(transport_ack=True)
    for n in range(3):
        pair.post(5000, wr_id=n)
    first, *others = pair.send()
    answers = pair.take([*others, first])
    (ack,) = [frame for frame in answers if frame[BTH_OFFSET] == Opcode.ACKNOWLEDGE]
    assert body(ack) == laid_out(
        bth(0xD1, pair.qpn_a, pair.psn + 5),  # three messages of two packets
        "1f",  # syndrome: ACK, credits constant
        "000003",  # messages completed
    )


def test_transport_nak_of_too_many_immediates():
    pair = Pair(max_wimm=2)
    pair.a.qps[pair.qpn_a].requester.queue.max_imms = 5
    pair.post(100, wr_id=0)
    for n in range(1, 5):
        pair.post(100, imm=n, wr_id=n)
    frames = pair.send()
    (nak,) = [f for f in pair.take([frames[0], *frames[2:]]) if f[BTH_OFFSET] == Opcode.ACKNOWLEDGE]
    assert body(nak) == laid_out(
        bth(0xD1, pair.qpn_a, pair.psn + 1),  # the expected PSN
        "61",  # syndrome: NAK, invalid request
        "000001",  # the first message is complete
    )


def test_endpoint_request_and_response():
    pair = Pair()
    pair.a.probe_ev(pair.qpn_a, ev_value(1, 0), T_SENT)
    ((port, request),) = pair.send()
    assert body(request) == laid_out(
        bth(0xD8, 2, 1),  # to QP 2; PSN[15:0] is the request id
        "0001 00 00",  # op 1 (EV_PROBE) in bits 1:0 of byte 1; reserved; vendor byte
        "00000003",  # ports 0 and 1 are up
        "00000000",
        "1234 0001",  # timestamp; tsr 0, ftype 1
    )
    (response,) = pair.take([(port, request)], T_SENT + 700_000)
    assert body(response) == laid_out(
        bth(0xD9, 2, 1),
        "0004",  # op 1 in bits 3:2 of byte 1
        "0000",
        24 * "00",  # words 1 to 6
        "1234",  # echoed timestamp at 28
        "0000 00000000",
    )


def test_port_status_update():
    pair = Pair()
    pair.a.set_port_state(0, False, T_SENT)
    (request,) = [frame for _, frame in pair.send()]
    assert body(request)[24:] == laid_out("0000 00 00 00000002 00000000 1234 0001")
    (response,) = pair.take([(1, request)])
    assert body(response)[24:] == laid_out("0000 0000", 24 * "00", "1234 0000 00000000")


def test_reserved_fields_are_ignored_on_receipt():
    pair = Pair()
    pair.post(3000)
    (sack,) = pair.take(pair.send())
    odd = bytearray(sack)
    start = BTH_OFFSET + 12
    odd[start + 8 : start + 13] = b"\xff" * 5  # spdcid, dpdcid, reserved
    odd[start + 16] = 0xF7  # another cc_type, cc_flags
    odd[start] = 0xF0  # type
    pair.a.receive(0, reseal(bytes(odd)), T_SENT + 100_000)
    pair.a.receive(1, reseal(bytes(odd)), T_SENT + 100_000)
    assert [done.wr_id for done in pair.a.poll_cq()] == [1]
