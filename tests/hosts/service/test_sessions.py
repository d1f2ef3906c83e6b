"""Sessions of programs on the NIC service: complete transfers, refusals, errors, and invalid requests."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import signal
from collections.abc import Iterator

import pytest

from mrclab.hosts.service.queue_pair import QP_HELD_BYTES
from mrclab.hosts.service.session import SessionOverError
from mrclab.hosts.service.shared_memory import OPS, VERSION, WORDS, RingError, record
from tests.support.nic_client import Program, Wire

SIZE = 20_000
LOC_PROT, FLUSHED, REMOTE_ACCESS, REMOTE_OPERATION = 4, 5, 10, 11
CQ_ERR, QP_FATAL, QP_ACCESS_ERR = 0, 1, 3
ERR = 6


class Area:
    """Memory of this process that a test can unmap."""

    def __init__(self, length: int) -> None:
        self._libc = ctypes.CDLL(None)
        self._libc.mmap.restype = ctypes.c_void_p
        self.length = length
        self.address = self._libc.mmap(None, ctypes.c_size_t(length), 3, 0x22, -1, ctypes.c_long(0))

    def unmap(self) -> None:
        self._libc.munmap(ctypes.c_void_p(self.address), ctypes.c_size_t(self.length))

    def fill(self, data: bytes) -> None:
        ctypes.memmove(self.address, data, len(data))

    def bytes(self, length: int) -> bytes:
        return ctypes.string_at(self.address, length)


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made.close()


@pytest.fixture
def programs(wire: Wire) -> tuple[Program, Program]:
    a, b = Program(wire.a), Program(wire.b)
    a.make_qp()
    b.make_qp()
    a.connect(b)
    b.connect(a)
    return a, b


@pytest.fixture
def areas() -> Iterator[tuple[Area, Area]]:
    here, there = Area(16 * mmap.PAGESIZE), Area(16 * mmap.PAGESIZE)
    yield here, there
    here.unmap()
    there.unmap()


def _events(program: Program) -> list[tuple[int, int]]:
    os.set_blocking(program.events, False)
    try:
        data = os.read(program.events, 800)
    except BlockingIOError:
        return []
    size = record("event").size
    return [record("event").unpack_from(data, at) for at in range(0, len(data), size)]


def test_bytes_arrive_and_the_immediate_consumes_a_receive(
    wire: Wire, programs: tuple[Program, Program], areas: tuple[Area, Area]
) -> None:
    (a, b), (here, there) = programs, areas
    data = random.Random(1).randbytes(SIZE)
    here.fill(data)
    lkey, rkey = a.register(here.address, here.length), b.register(there.address, there.length)
    b.post_receive(77, doorbell=False)  # as if it were posted just before the last packet arrives
    a.post(5, here.address, SIZE, lkey, there.address + 100, rkey, imm=0xABCD)
    wire.run()
    assert a.poll() == [(5, 0, 0)]
    assert there.bytes(SIZE + 100)[100:] == data
    assert b.poll() == [(77, 0, 0xABCD)]


def test_a_queue_pair_copies_a_mebibyte_ahead_and_no_more(
    wire: Wire, programs: tuple[Program, Program], areas: tuple[Area, Area]
) -> None:
    """Data that is copied too early leaves the CPU's cache before it is sent."""
    (a, b), (here, there) = programs, areas
    lkey, rkey = a.register(here.address, here.length), b.register(there.address, there.length)
    count = QP_HELD_BYTES // here.length + 4
    a.make_qp(slots=64)
    b.make_qp(slots=64)
    a.connect(b)
    b.connect(a)
    for number in range(count):
        a.post(number, here.address, here.length, lkey, there.address, rkey)
    assert a.session.take() == QP_HELD_BYTES // here.length
    assert a.session.take() == 0
    assert a.session.qps[a.qpn].held_bytes == QP_HELD_BYTES
    wire.run(300)
    assert a.poll() == [(number, 0, 0) for number in range(count)]
    assert a.session.qps[a.qpn].held_bytes == 0


def test_an_immediate_without_a_receive_ends_both_queue_pairs(
    wire: Wire, programs: tuple[Program, Program], areas: tuple[Area, Area]
) -> None:
    (a, b), (here, there) = programs, areas
    lkey, rkey = a.register(here.address, here.length), b.register(there.address, there.length)
    b.post_receive(70)
    for number in range(3):
        a.post(number, here.address, 100, lkey, there.address, rkey, imm=number)
        wire.run()
    assert a.poll() == [(0, 0, 0), (1, REMOTE_OPERATION, 0), (2, FLUSHED, 0)]
    assert b.poll() == [(70, 0, 0)]
    assert _events(b) == [(QP_FATAL, b.qpn)]
    assert [program.rings.word(WORDS["QP_STATE"]) for program in programs] == [ERR, ERR]


@pytest.mark.parametrize("connected", [True, False])
def test_an_error_flushes_receives_in_the_order_of_posting(wire: Wire, connected: bool) -> None:
    a, b = Program(wire.a), Program(wire.b)
    for program in (a, b):
        program.make_qp()
    if connected:
        a.connect(b)
        b.connect(a)
    for number in range(3):
        a.post_receive(number)
    wire.run()
    a.call("MODIFY_QP", a.qpn, ERR)
    a.post_receive(3)
    wire.run()
    a.post_receive(4)
    wire.run()
    assert a.poll() == [(number, FLUSHED, 0) for number in range(5)]


def test_receives_posted_before_the_error_state_are_flushed_without_another_post(wire: Wire) -> None:
    program = Program(wire.a)
    program.make_qp()
    for number in range(3):
        program.post_receive(number)
    wire.run()
    program.call("MODIFY_QP", program.qpn, ERR)
    assert program.poll() == [(number, FLUSHED, 0) for number in range(3)]


def test_a_program_that_posts_receives_without_end_does_not_hold_the_nic(wire: Wire) -> None:
    program = Program(wire.a)
    program.make_qp(slots=8192)
    program.call("MODIFY_QP", program.qpn, ERR)
    words = memoryview(program.rings.map).cast("I")
    taken, posted = WORDS["QP_RQ_CONS"], WORDS["QP_RQ_PROD"]
    words[posted] = 8192
    program.ring()
    test = os.getpid()
    pid = os.fork()
    if not pid:
        while os.getppid() == test:
            words[posted] = words[taken] + 8192 & 0xFFFFFFFF
        os._exit(0)
    try:
        assert program.session.take() == 8192
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        words.release()


def test_requests_beyond_the_send_queue_end_the_session(
    wire: Wire, programs: tuple[Program, Program], areas: tuple[Area, Area]
) -> None:
    """Without this limit, empty writes to a silent peer would fill the memory of the NIC service."""
    (a, _), (here, there) = programs, areas
    lkey = a.register(here.address, here.length)
    for number in range(16):
        a.post(number, here.address, 0, lkey, there.address, 1)
    assert a.session.take() == 16
    a.post(16, here.address, 0, lkey, there.address, 1)
    with pytest.raises(RingError):
        a.session.take()


def test_a_false_count_of_receives_ends_its_own_session_alone(
    wire: Wire, programs: tuple[Program, Program], areas: tuple[Area, Area]
) -> None:
    """The NIC finds the error while a frame arrives, and the session ends at its next turn."""
    (a, b), (here, there) = programs, areas
    lkey, rkey = a.register(here.address, here.length), b.register(there.address, there.length)
    b.rings.set_word(WORDS["QP_RQ_PROD"], 1 << 20)
    a.post(1, here.address, 100, lkey, there.address, rkey, imm=1)
    with pytest.raises(RingError):
        wire.run()


def test_an_overrun_queue_is_told_once_and_after_its_queue_pair_has_failed(
    wire: Wire, programs: tuple[Program, Program], areas: tuple[Area, Area]
) -> None:
    (a, b), (here, there) = programs, areas
    lkey, rkey = a.register(here.address, here.length), b.register(there.address, there.length)
    states: list[tuple[int, int]] = []
    tell = a.session.raise_event

    def note(kind: int, number: int) -> None:
        states.append((kind, a.rings.word(WORDS["QP_STATE"])))
        tell(kind, number)

    a.session.qps[a.qpn]._raise_event = note
    for number in range(80):  # more than the 64 entries of the queue
        a.post(number, here.address, 8, lkey, there.address, rkey)
        if number % 8 == 7:
            wire.run()
    assert states == [(CQ_ERR, ERR)]
    assert len(_events(a)) == 1
    assert len(a.poll()) == 64


def test_a_bad_lkey_fails_in_its_place_and_flushes_what_follows(
    wire: Wire, programs: tuple[Program, Program], areas: tuple[Area, Area]
) -> None:
    (a, b), (here, there) = programs, areas
    lkey, rkey = a.register(here.address, here.length), b.register(there.address, there.length)
    a.post_receive(9)
    a.post(1, here.address, 100, lkey, there.address, rkey)
    a.post(2, here.address, 100, lkey + 1, there.address, rkey)
    a.post(3, here.address, 100, lkey, there.address, rkey)
    wire.run()
    assert a.poll() == [(1, 0, 0), (2, LOC_PROT, 0), (3, FLUSHED, 0), (9, FLUSHED, 0)]
    assert a.rings.word(WORDS["QP_STATE"]) == 6
    a.post(4, here.address, 100, lkey, there.address, rkey)
    wire.run()
    assert a.poll()[-1] == (4, FLUSHED, 0)
    assert _events(a) == []


def test_a_write_beyond_its_region_reads_nothing(
    wire: Wire, programs: tuple[Program, Program], areas: tuple[Area, Area]
) -> None:
    (a, b), (here, there) = programs, areas
    lkey, rkey = a.register(here.address, 100), b.register(there.address, there.length)
    a.post(1, here.address + 50, 51, lkey, there.address, rkey)
    wire.run()
    assert (1, LOC_PROT, 0) in a.poll()


def test_a_write_beyond_the_last_address_is_an_access_error(
    wire: Wire, programs: tuple[Program, Program], areas: tuple[Area, Area]
) -> None:
    (a, b), (here, there) = programs, areas
    lkey, rkey = a.register(here.address, here.length), b.register(there.address, there.length)
    a.post(1, here.address, SIZE, lkey, (1 << 64) - SIZE + 1, rkey)
    a.post(2, here.address, 100, lkey, there.address, rkey)
    wire.run()
    assert a.poll() == [(1, REMOTE_ACCESS, 0), (2, FLUSHED, 0)]


def test_memory_that_is_gone_ends_the_write_at_both_ends(
    wire: Wire, programs: tuple[Program, Program], areas: tuple[Area, Area]
) -> None:
    (a, b), (here, there) = programs, areas
    lkey, rkey = a.register(here.address, here.length), b.register(there.address, there.length)
    there.unmap()
    a.post(1, here.address, SIZE, lkey, there.address, rkey)
    wire.run()
    assert a.poll() == [(1, REMOTE_OPERATION, 0)]
    assert (QP_FATAL, b.qpn) in _events(b)


def test_a_region_that_was_closed_is_an_access_error(
    wire: Wire, programs: tuple[Program, Program], areas: tuple[Area, Area]
) -> None:
    (a, b), (here, there) = programs, areas
    lkey, rkey = a.register(here.address, here.length), b.register(there.address, there.length)
    b.call("DEREG_MR", rkey)
    a.post(1, here.address, SIZE, lkey, there.address, rkey)
    wire.run()
    assert a.poll() == [(1, REMOTE_OPERATION, 0)]
    assert (QP_ACCESS_ERR, b.qpn) in _events(b)


def test_one_program_cannot_use_what_another_made(
    wire: Wire, programs: tuple[Program, Program], areas: tuple[Area, Area]
) -> None:
    (a, b), (here, there) = programs, areas
    other = Program(wire.a)
    other.make_qp()
    other_b = Program(wire.b)
    other_b.make_qp()
    other.connect(other_b)
    other_b.connect(other)
    lkey, rkey = a.register(here.address, here.length), b.register(there.address, there.length)
    for name, number in (("DEREG_MR", lkey), ("DESTROY_QP", a.qpn), ("DESTROY_CQ", 2 + 100)):
        with pytest.raises(OSError, match="Invalid argument"):
            other.call(name, number)
    other.post(1, here.address, 100, lkey, there.address, rkey)
    wire.run()
    assert (1, LOC_PROT, 0) in other.poll()


@pytest.mark.parametrize("owner", ["another domain", "another program"])
def test_a_peer_writes_only_to_the_domain_of_the_queue_pair(
    wire: Wire, programs: tuple[Program, Program], areas: tuple[Area, Area], owner: str
) -> None:
    (a, b), (here, there) = programs, areas
    other = b if owner == "another domain" else Program(wire.b)
    rkey = other.register(there.address, there.length, domain=2 if other is b else 1)
    here.fill(b"written")
    a.post(1, here.address, 7, a.register(here.address, here.length), there.address, rkey)
    wire.run()
    assert a.poll() == [(1, REMOTE_OPERATION, 0)]
    assert there.bytes(7) == bytes(7)
    assert _events(b) == [(QP_ACCESS_ERR, b.qpn)]


def test_a_right_that_is_taken_away_holds_also_for_the_region_of_the_last_write(
    wire: Wire, programs: tuple[Program, Program], areas: tuple[Area, Area]
) -> None:
    (a, b), (here, there) = programs, areas
    rkey, lkey = b.register(there.address, there.length), a.register(here.address, here.length)
    here.fill(b"written")
    a.post(1, here.address, 3, lkey, there.address, rkey)
    wire.run()
    b.call("MODIFY_QP", b.qpn, 3, 0, 0, 0, 5, 1)
    a.post(2, here.address, 7, lkey, there.address, rkey)
    wire.run()
    assert a.poll() == [(1, 0, 0), (2, REMOTE_OPERATION, 0)]
    assert there.bytes(7) == b"wri" + bytes(4)


@pytest.mark.parametrize(
    ("name", "args", "error"),
    [
        ("CREATE_CQ", (0, 0), errno.EINVAL),
        ("CREATE_CQ", (1 << 40, 0), errno.EINVAL),
        ("CREATE_CQ", (4, 99), errno.EINVAL),
        ("CREATE_QP", (98, 99, 1, 1), errno.EINVAL),
        ("REG_MR", (0, 4096, 0, 3, 1), errno.EFAULT),
        ("REG_MR", (1 << 63, 1 << 63, 0, 3, 1), errno.EINVAL),
        ("REG_MR", (4096, 0, 0, 3, 1), errno.EINVAL),
        ("REG_MR", (4096, 1, 4096, 2, 1), errno.EINVAL),
        ("REG_MR", (4096, 1, 4096, 0x30, 1), errno.EOPNOTSUPP),
        ("MODIFY_QP", (1, 3), errno.EINVAL),
        ("DESTROY_CHANNEL", (3,), errno.EINVAL),
    ],
)
def test_refusals_have_their_errno(wire: Wire, name: str, args: tuple[int, ...], error: int) -> None:
    with pytest.raises(OSError, match=os.strerror(error)):
        Program(wire.a).call(name, *args)


def test_queue_pairs_change_states_in_order(wire: Wire) -> None:
    program = Program(wire.a)
    program.make_qp()
    for state in (3, 4, 5, 7, 1 << 40):
        with pytest.raises(OSError, match="Invalid argument"):
            program.call("MODIFY_QP", program.qpn, state)
    with pytest.raises(OSError, match="Invalid argument"):
        program.call("MODIFY_QP", program.qpn, 2, gid=bytes(16))
    program.call("MODIFY_QP", program.qpn, 6)
    assert program.rings.word(WORDS["QP_STATE"]) == 6


@pytest.mark.parametrize("seed", range(4))
def test_random_requests_end_at_most_their_own_session(wire: Wire, seed: int) -> None:
    """The service answers each request or ends the session."""
    rng = random.Random(seed)
    size = record("request").size
    ended = 0
    for _ in range(20):
        program = Program(wire.a, hello=rng.random() < 0.8)
        if rng.random() < 0.5 and program.session.hello_done():
            program.make_qp()
        for _ in range(40):
            if rng.random() < 0.1:
                message = rng.randbytes(rng.choice((1, 8, size - 1, size, size + 1, 4 * size)))
            else:
                small = [rng.choice((0, 1, 2, 3, 5, 4096, 1 << 32, (1 << 64) - 1)) for _ in range(8)]
                small[0] = rng.choice((small[0], program.qpn))
                message = record("request").pack(rng.randrange(2, len(OPS) + 2), VERSION, *small, bytes(16))
            program.socket.send(message)
            try:
                program.session.serve()
            except SessionOverError:
                ended += 1
                break
            program.socket.recv(4096)
        program.session.close()
        wire.a.sessions.remove(program.session)
        program.socket.close()
    assert ended > 0
    assert not wire.a.endpoint.qps
    assert not wire.a.endpoint.memory.regions


@pytest.mark.parametrize("seed", range(4))
def test_random_rings_end_at_most_their_own_session(wire: Wire, seed: int, areas: tuple[Area, Area]) -> None:
    rng = random.Random(seed)
    (here, there) = areas
    good, peer = Program(wire.a), Program(wire.b)
    for program in (good, peer):
        program.make_qp()
    good.connect(peer)
    peer.connect(good)
    refused = 0
    for _ in range(10):
        bad = Program(wire.a)
        bad.make_qp()
        if rng.random() < 0.5:
            bad.connect(peer)
        length = len(bad.rings.map)
        for _ in range(50):
            at = rng.choice((0, 128, WORDS["QP_RING_OFFSET"], rng.randrange(length - 64)))
            bad.rings.map[at : at + 64] = rng.randbytes(64)
            bad.ring()
            try:
                bad.session.take()
            except RingError:
                refused += 1
                break
        wire.a.sessions.remove(bad.session)
        bad.session.close()
    assert refused > 0
    lkey, rkey = good.register(here.address, here.length), peer.register(there.address, there.length)
    good.post(1, here.address, SIZE, lkey, there.address, rkey)
    wire.run()
    assert good.poll() == [(1, 0, 0)]
