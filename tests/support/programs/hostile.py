"""A program that fills its rings with random entries: python hostile.py COUNT SEED PEER.

It attaches to its host's NIC service again and again until the service has accepted COUNT random entries.
Each queue pair is connected to a queue pair of PEER that has a random number. The program posts batches of
random or nearly correct entries, and writes random words into the completion queue and the page that it
shares with the service. At the end of a session it writes a wrong counter, so that the service has to end the
session. Last, it prints a line of JSON with the numbers of sessions, queue pairs, entries and ended sessions.
"""

import ctypes
import ipaddress
import json
import os
import random
import select
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[3])]

from mrclab.hosts.service.shared_memory import WORDS, record  # noqa: E402
from tests.support.nic_client import Client  # noqa: E402

SLOTS = 256
QUEUE_PAIRS = 12
BATCHES = 3
PATIENCE_S = 60.0
TAKEN_S = 0.1
"""The longest wait for a batch, in s. Without acknowledgements, the service accepts no more entries."""
REGION = 1 << 20
_WORK, _SGE = record("work"), record("sge")
_RING = WORDS["QP_RING_OFFSET"]


class Hostile:
    """A writer of random ring entries, drawn from a seed."""

    def __init__(self, seed: int, peer: str) -> None:
        self.rng = random.Random(seed)
        address = ipaddress.IPv4Address(socket.gethostbyname(peer))
        self.gid = bytes(10) + b"\xff\xff" + address.packed
        self.area = ctypes.create_string_buffer(REGION)
        self.address = ctypes.addressof(self.area)
        self.sessions = self.ended = self.queue_pairs = self.entries = 0

    def session(self, wanted: int) -> None:
        """Attach to the service and post about ``wanted`` entries. At the end, write a wrong ring counter."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(os.environ["MRCLAB_NIC"])
            client = Client(connection)
            self.sessions += 1
            self.over = select.poll()
            self.over.register(connection, select.POLLRDHUP)
            with suppress(ConnectionError, struct.error):  # the service has ended the session
                self.lie(client, self.entries + wanted)
            self.ended += bool(self.over.poll(PATIENCE_S * 1000))
            for fd in (client.doorbell, client.events):
                os.close(fd)

    def lie(self, client: Client, until: int) -> None:
        """Post random entries from several queue pairs. Raise an error if the service ends the session."""
        rng = self.rng
        self.lkey = client.register(self.address, REGION)
        for _ in range(QUEUE_PAIRS):
            if client.qpn and rng.random() < 0.7:
                client.call("DESTROY_QP", client.qpn)
            client.make_qp(SLOTS)
            self.queue_pairs += 1
            if rng.random() < 0.8:
                number, psn = rng.getrandbits(24), rng.getrandbits(24)
                client.call("MODIFY_QP", client.qpn, 2, number, psn, 0, 5, gid=self.gid)
                client.call("MODIFY_QP", client.qpn, 3, 0, 0, rng.getrandbits(24))
            else:
                client.call("MODIFY_QP", client.qpn, 6)
            client.posted = receives = 0
            for _ in range(BATCHES):
                receives += rng.randrange(SLOTS // BATCHES)
                self.batch(client, receives)
            if self.entries >= until:
                break
        false = (client.posted + SLOTS + 1, client.posted - SLOTS - 1, rng.getrandbits(32) | 1 << 20)
        if rng.random() < 0.5:  # the NIC reads this counter only when it needs a receive request
            client.rings.set_word(WORDS["QP_RQ_PROD"], rng.choice(false) & 0xFFFFFFFF)
        client.rings.set_word(WORDS["QP_SQ_PROD"], rng.choice(false) & 0xFFFFFFFF)
        self.ring(client)

    def batch(self, client: Client, receives: int) -> None:
        """Post entries and change words of the shared memory. Wait until the service has read the entries."""
        rng = self.rng
        before = client.rings.word(WORDS["QP_SQ_CONS"])
        room = SLOTS - (client.posted - before)
        count = rng.randint(min(1, room), room)
        for number in range(client.posted, client.posted + count):
            at = _RING + number % SLOTS * _WORK.size
            client.rings.map[at : at + _WORK.size] = self.entry()
        client.posted += count
        for shared, words in ((client.cq, 64), (client.page, 48)):
            if rng.random() < 0.3:
                shared.set_word(rng.randrange(words), rng.getrandbits(32))
        client.rings.set_word(WORDS["QP_RQ_PROD"], receives)
        client.rings.set_word(WORDS["QP_SQ_PROD"], client.posted)
        self.ring(client)
        deadline = time.monotonic() + TAKEN_S
        while client.rings.word(WORDS["QP_SQ_CONS"]) != client.posted and time.monotonic() < deadline:
            time.sleep(0.0002)
        self.entries += client.rings.word(WORDS["QP_SQ_CONS"]) - before

    def entry(self) -> bytes:
        """Return a work request: random bytes, or fields of which some are correct."""
        rng = self.rng
        if rng.random() < 0.3:
            return rng.randbytes(_WORK.size)
        pieces = b"".join(
            _SGE.pack(
                self.address + rng.randrange(REGION) if rng.random() < 0.9 else rng.getrandbits(64),
                rng.choice((0, 1, 64, 4096, 20_000, rng.getrandbits(32))),
                self.lkey if rng.random() < 0.9 else rng.getrandbits(32),
            )
            for _ in range(rng.randint(0, 4))
        )
        return _WORK.pack(
            rng.getrandbits(64),
            rng.getrandbits(rng.choice((12, 48, 64))),
            rng.getrandbits(32),
            rng.getrandbits(32),
            rng.choice((0, 1, rng.getrandbits(8))),
            rng.getrandbits(rng.choice((4, 8))),
            rng.choice((0, 1, 2, 4, rng.getrandbits(16))),
            rng.getrandbits(rng.choice((7, 9, 32))),
            pieces,
        )

    def ring(self, client: Client) -> None:
        """Ring the doorbell, so that the service reads the rings."""
        client.ring()
        os.eventfd_write(client.doorbell, self.rng.choice((1, 1, 1 << 40)))


def main() -> None:
    """Run sessions until the service has accepted COUNT entries. Print the counts as JSON."""
    count, seed, peer = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    hostile = Hostile(seed, peer)
    while hostile.entries < count:
        hostile.session(count - hostile.entries)
    names = ("sessions", "ended", "queue_pairs", "entries")
    print(json.dumps({name: getattr(hostile, name) for name in names}))


main()
