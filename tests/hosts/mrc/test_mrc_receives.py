"""Posted receives for writes with immediate, and the limits of messages."""

import mmap

import pytest

from mrclab.hosts.mrc import MrcConfig, SpecReading
from mrclab.hosts.mrc.wire import Opcode
from mrclab.hosts.rdma.events import QpError, ReceiveCompleted, SendCompleted, Status
from mrclab.hosts.rdma.frames import BTH_OFFSET
from tests.support.endpoint_state import allowed
from tests.support.mrc_pair import T_SENT, Pair, body, reseal
from tests.support.mrc_sim import Network, Sim

BOTH_ORDERS = pytest.mark.parametrize("waits", [True, False])


def receiving(posted, immediates, **options):
    """Post receives at one end. Then post writes with and without immediate data at the other end."""
    network = options.pop("network", Network())
    sim = Sim(seed=4, config=MrcConfig(posted_receives=True, **options), network=network)
    for n in range(posted):
        sim.ends[1].post_recv(sim.qpns[1], 100 + n)
    region = sim.ends[1].register_memory(bytearray(1 << 16))
    for n in range(2 * immediates):
        imm = n // 2 if n % 2 else None
        sim.ends[0].post_write(sim.qpns[0], n, bytes(5000), region.address, region.rkey, imm=imm)
    sim.run(10_000_000_000, until=lambda: sim.completed[0] == 2 * immediates)
    return sim


@BOTH_ORDERS
def test_each_immediate_consumes_the_oldest_receive(waits):
    network = Network(loss=0.1, jitter_ns=60_000)
    sim = receiving(30, 20, imm_waits_for_earlier=waits, network=network)
    assert {e.status for e in sim.of(0, SendCompleted)} == {Status.SUCCESS}
    got = sim.of(1, ReceiveCompleted)
    assert [(e.wr_id, e.imm) for e in got] == [(100 + n, n) for n in range(20)]
    assert not sim.of(1, QpError)


@BOTH_ORDERS
@pytest.mark.parametrize("transport_ack", [True, False])
def test_an_immediate_without_a_receive_ends_both_ends(waits, transport_ack):
    sim = receiving(2, 4, imm_waits_for_earlier=waits, transport_ack=transport_ack)
    # The third write with immediate data is write 5. It finds no receive.
    statuses = [e.status for e in sim.of(0, SendCompleted)]
    assert statuses == [Status.SUCCESS] * 5 + [Status.REMOTE_OPERATION_ERROR] + [Status.FLUSHED] * 2
    assert [e.wr_id for e in sim.of(1, ReceiveCompleted)] == [100, 101]
    [error] = sim.of(1, QpError)
    assert error.status is Status.REMOTE_OPERATION_ERROR
    assert "no receive is posted" in error.detail


@BOTH_ORDERS
def test_a_peer_that_repeats_an_rqmsn_takes_no_receive_that_is_not_there(waits):
    """Two early immediates that both claim the next receive must not both get it when the gap is closed."""
    pair = Pair(posted_receives=True, imm_waits_for_earlier=waits)
    pair.b.post_recv(pair.qpn_b, 100)
    for n in range(3):
        pair.post(8, imm=n or None, wr_id=n)
    first, *others = pair.send()
    rqmsn = slice(BTH_OFFSET + 12, BTH_OFFSET + 14)
    for port, frame in others:
        forged = bytearray(frame)
        forged[rqmsn] = b"\0\0"
        pair.b.receive(port, reseal(bytes(forged)), T_SENT)
    pair.take([first])
    assert [done.wr_id for done in pair.b.poll_cq()] == [100]


@pytest.mark.parametrize("syndrome", [0x63, 0x7E])
def test_the_nak_of_an_immediate_without_a_receive(syndrome):
    reading = SpecReading(no_receive_syndrome=syndrome)
    pair = Pair(posted_receives=True, reading=reading, transport_ack=True)
    pair.post(100, imm=7)
    answers = pair.take(pair.send())
    [nak] = [frame for frame in answers if frame[BTH_OFFSET] == Opcode.ACKNOWLEDGE]
    assert body(nak)[24:26] == f"{syndrome:02x}"
    assert int.from_bytes(nak[BTH_OFFSET + 9 : BTH_OFFSET + 12], "big") == pair.psn, "it is not in memory"
    for frame in answers:
        pair.a.receive(0, frame, 1_000_000)
        pair.a.receive(1, frame, 1_000_000)
    [ended] = pair.a.poll_cq()
    assert ended.status is Status.REMOTE_OPERATION_ERROR
    with pytest.raises(ValueError, match="no_receive_syndrome must be a NAK"):
        SpecReading(no_receive_syndrome=0x1F)


def test_receives_that_are_left_are_flushed_when_the_queue_pair_fails():
    sim = receiving(3, 0)
    sim.ends[1].qps[sim.qpns[1]].requester.fail(sim.now_ns, Status.RETRY_EXCEEDED, "for a test", None)
    sim.run(1_000_000)
    assert [e.wr_id for e in sim.of(1, ReceiveCompleted)] == [100, 101, 102]
    sim.ends[1].post_recv(sim.qpns[1], 7, sim.now_ns)
    sim.run(1_000_000)
    got = [(e.wr_id, e.status) for e in sim.of(1, ReceiveCompleted)]
    assert got == [(n, Status.FLUSHED) for n in (100, 101, 102, 7)]


def test_a_queue_pair_may_have_receives_though_the_option_is_off():
    sim = Sim(seed=1)
    end = sim.ends[0]
    with pytest.raises(ValueError, match="without receives"):
        end.post_recv(sim.qpns[0], 1)
    end.post_recv(end.create_qp(receives=True), 1)


def test_windows_and_immediates_up_to_their_fields_sizes_are_accepted():
    for mpr, wimm in ((1024, 32), (8192, 128), (32_640, 65_535)):
        with allowed():
            config = MrcConfig(mpr=mpr, max_wimm=wimm, posted_receives=True)
        sim = Sim(seed=1, config=config)
        assert sim.ends[0].local_attributes(sim.qpns[0]).mpr == mpr
    for bad in ({"mpr": 32_768}, {"mpr": 1000}, {"max_wimm": 65_536}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            MrcConfig(**bad)


def test_messages_from_one_byte_to_the_longest_that_the_field_has():
    sim = Sim(seed=1)
    end, qpn = sim.ends[0], sim.qpns[0]
    # Pages that are never read or written take no memory.
    view = memoryview(mmap.mmap(-1, 1 << 32))
    with allowed():
        end.post_write(qpn, 1, view[:-1], 0, 0)
    end.post_write(qpn, 2, b"1", 0, 0)
    end.post_write(qpn, 3, b"", 0, 0)
    with pytest.raises(ValueError, match="0 to 4294967295 bytes"):
        end.post_write(qpn, 4, view, 0, 0)
    strict = Sim(seed=1, config=MrcConfig(reading=SpecReading(zero_length_messages=False)))
    with pytest.raises(ValueError, match="1 to 4294967295 bytes"):
        strict.ends[0].post_write(strict.qpns[0], 1, b"", 0, 0)


@pytest.mark.parametrize(
    ("address", "rkey", "text"),
    [
        ((1 << 64) - 99, 1, "100 bytes at 0xffffffffffffff9d do not fit"),
        (-1, 1, "do not fit into addresses of 64 bits"),
        (1 << 70, 1, "do not fit into addresses of 64 bits"),
        (0, 1 << 32, "a memory key has 32 bits"),
    ],
)
def test_a_write_that_no_packet_can_carry_is_refused_when_posted(address, rkey, text):
    sim = Sim(seed=1)
    with pytest.raises(ValueError, match=text):
        sim.ends[0].post_write(sim.qpns[0], 1, bytes(100), address, rkey)
    sim.ends[0].post_write(sim.qpns[0], 2, bytes(100), (1 << 64) - 100, 1)
    sim.run(1_000_000)
    assert [done.wr_id for done in sim.of(0, SendCompleted)] == [2], "the queue pair goes on, to an answer"
