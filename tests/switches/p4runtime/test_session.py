"""A client that sends what is refused and never reads the answers costs the server no more than a few."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from finsy.proto import p4r

from switches.ebpf.p4runtime.arbitration import Client
from switches.ebpf.p4runtime.server import _MESSAGES_WAITING, _Session
from switches.ebpf.p4runtime.status import Code, P4RuntimeError


def _refuse(*_: object) -> None:
    raise P4RuntimeError(Code.FAILED_PRECONDITION, "there is no CPU port")


def test_errors_that_nobody_reads_do_not_pile_up() -> None:
    queue: asyncio.Queue[Any] = asyncio.Queue()
    server: Any = SimpleNamespace(_packet_out=_refuse)
    session = _Session(server, Client(queue.put_nowait, queue.qsize), queue)
    session._arbiter = SimpleNamespace(device_id=1)  # type: ignore[assignment]
    for number in range(3 * _MESSAGES_WAITING):
        session._handle(p4r.StreamMessageRequest(packet=p4r.PacketOut(payload=b"%d" % number)))
    assert queue.qsize() == _MESSAGES_WAITING
    assert queue.get_nowait().error.packet_out.packet_out.payload == b"0"
