"""If a client never reads its messages, the server keeps only a few of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from finsy.proto import p4r

from mrclab.switches.ebpf.p4runtime.arbitration import MESSAGES_WAITING, Arbiter
from mrclab.switches.ebpf.p4runtime.server import Session
from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError
from mrclab.switches.ebpf.p4runtime.switch_group import SwitchGroup
from mrclab.switches.ebpf.runtime.digests import ReadyList


def _refuse(*_: object) -> None:
    raise P4RuntimeError(Code.FAILED_PRECONDITION, "there is no CPU port")


def test_errors_that_nobody_reads_do_not_pile_up() -> None:
    arbiter = Arbiter(1)
    switches: Any = SimpleNamespace(arbiter=lambda device_id: arbiter, packet_out=_refuse)
    session = Session(switches)
    arbitration = p4r.StreamMessageRequest()
    arbitration.arbitration.device_id = 1
    session.handle(arbitration)
    assert session.queue.get_nowait() is not None
    for number in range(3 * MESSAGES_WAITING):
        session.handle(p4r.StreamMessageRequest(packet=p4r.PacketOut(payload=b"%d" % number)))
    assert session.queue.qsize() == MESSAGES_WAITING
    first = session.queue.get_nowait()
    assert isinstance(first, p4r.StreamMessageResponse)
    assert first.error.packet_out.packet_out.payload == b"0"


def test_digests_and_idle_entries_that_nobody_reads_do_not_pile_up() -> None:
    arbiter = Arbiter(1)
    session = Session(cast(SwitchGroup, SimpleNamespace(arbiter=lambda device_id: arbiter)))
    arbitration = p4r.StreamMessageRequest()
    arbitration.arbitration.device_id = arbitration.arbitration.election_id.low = 1
    session.handle(arbitration)
    group: Any = SimpleNamespace(_arbiters={1: arbiter})
    running = SimpleNamespace(ready_digests=lambda: [ReadyList(7, 1, ())] * 3)
    device: Any = SimpleNamespace(config=SimpleNamespace(schema=None), running=running)
    for _ in range(MESSAGES_WAITING):
        SwitchGroup._send_digests(group, 1, device)
        SwitchGroup._send_idle(group, 1, [p4r.TableEntry(table_id=5)])
    assert session.queue.qsize() == MESSAGES_WAITING
