"""Classes of forged frames, made from captured frames. No I/O; the random generator is an argument.

A class makes a forged frame from a frame of a stream. Lengths and ICRC are right unless the name of the
class says otherwise.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mrclab.hosts.mrc.wire import Opcode
from mrclab.hosts.rdma.frames import BTH_OFFSET, ETH_LEN
from tests.support.mrc_pair import reseal
from tests.support.mrc_sim import trim

LONGEST_BYTES = 4300
_QPN, _PSN = BTH_OFFSET + 5, BTH_OFFSET + 9
_HOP_LIMIT, _NEXT_HEADER, _SOURCE, _DESTINATION = ETH_LEN + 7, ETH_LEN + 6, ETH_LEN + 8, ETH_LEN + 24
_ROUTING = 43

Make = Callable[[random.Random, bytes], bytes]


@dataclass(frozen=True, slots=True)
class Forgery:
    """A class of forged frames. `make` changes a data frame of the sender or an answer of the receiver."""

    of_data: bool
    make: Make


def _put(frame: bytes, at: int, value: bytes) -> bytes:
    return frame[:at] + value + frame[at + len(value) :]


def _psn(frame: bytes, offset: int) -> bytes:
    psn = int.from_bytes(frame[_PSN : _PSN + 3], "big") + offset & 0xFFFFFF
    return reseal(_put(frame, _PSN, psn.to_bytes(3, "big")))


def _any_byte(rng: random.Random, frame: bytes) -> bytes:
    return reseal(_put(frame, rng.randrange(BTH_OFFSET, len(frame) - 4), rng.randbytes(1)))


def _random_body(rng: random.Random, frame: bytes) -> bytes:
    return reseal(frame[: BTH_OFFSET + 12] + rng.randbytes(len(frame) - BTH_OFFSET - 16) + frame[-4:])


def _opcode(*codes: int) -> Make:
    return lambda rng, frame: reseal(_put(frame, BTH_OFFSET, bytes((rng.choice(codes),))))


def _routing_header(rng: random.Random, frame: bytes) -> bytes:
    """Put a routing header of random bytes behind the outer IPv6 header."""
    header = frame[_NEXT_HEADER : _NEXT_HEADER + 1] + b"\x02\x04\x00" + rng.randbytes(20)
    found = _put(frame[: ETH_LEN + 40], _NEXT_HEADER, bytes((_ROUTING,))) + header + frame[ETH_LEN + 40 :]
    return _put(found, ETH_LEN + 4, (len(found) - ETH_LEN - 40).to_bytes(2, "big"))[:LONGEST_BYTES]


CLASSES: dict[str, Forgery] = {
    "data, any PSN": Forgery(True, lambda rng, f: _psn(f, rng.randrange(1 << 24))),
    "data, PSN of the window": Forgery(True, lambda rng, f: _psn(f, rng.randrange(256))),
    "data, any queue pair": Forgery(True, lambda rng, f: reseal(_put(f, _QPN, rng.randbytes(3)))),
    "data, any byte": Forgery(True, _any_byte),
    "data, trimmed": Forgery(
        True, lambda rng, f: trim(_psn(f, rng.randrange(256)), last_hop=bool(rng.getrandbits(1)))
    ),
    "data, wrong ICRC": Forgery(True, lambda rng, f: f[:-4] + rng.randbytes(4)),
    "data, cut off": Forgery(True, lambda rng, f: f[: rng.randrange(14, len(f))]),
    "data, of the MTU": Forgery(
        True, lambda rng, f: reseal((f + rng.randbytes(LONGEST_BYTES))[:LONGEST_BYTES])
    ),
    "data, few hops": Forgery(True, lambda rng, f: _put(f, _HOP_LIMIT, bytes((rng.randrange(4),)))),
    "data, any source": Forgery(True, lambda rng, f: _put(f, _SOURCE, rng.randbytes(16))),
    "data, any segments": Forgery(True, lambda rng, f: _put(f, _DESTINATION + 4, rng.randbytes(12))),
    "data, routing header": Forgery(True, _routing_header),
    "answers, any bytes": Forgery(False, _random_body),
    "answers, any byte": Forgery(False, _any_byte),
    "NACKs, any bytes": Forgery(False, lambda rng, f: _opcode(Opcode.NACK)(rng, _random_body(rng, f))),
    "probes and requests": Forgery(
        False,
        lambda rng, f: _opcode(Opcode.PROBE_REQUEST, Opcode.ENDPOINT_REQUEST, Opcode.ENDPOINT_RESPONSE)(
            rng, _random_body(rng, f)
        ),
    ),
    "opcodes that MRC lacks": Forgery(False, _opcode(0x81, 0xC0, 0xC4, 0xC5, 0xCC, 0xCD, 0xD0, 0xD2, 0xDF)),
}


def forged(name: str, seen: Sequence[bytes], count: int, rng: random.Random) -> list[bytes]:
    """Return ``count`` frames of a class, each made from one of ``seen``, which must not be empty."""
    make = CLASSES[name].make
    return [make(rng, rng.choice(seen)) for _ in range(count)]
