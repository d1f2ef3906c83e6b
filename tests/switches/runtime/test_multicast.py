"""Multicast: which ports get a copy, and how egress changes each copy."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from finsy.proto import p4r

from mrclab.switches.p4_model import Interpreter
from mrclab.switches.v1model.bmv2_json import read_program
from tests.support.switch_fixtures import TARGETS
from tests.support.switch_kit import (
    DATA,
    Client,
    Names,
    Namespace,
    compare_copies,
    read_p4info,
    three_ports,
)

pytestmark = pytest.mark.parallel

PROGRAM = DATA / "multicast.json"
# Each copy is (port, instance). A port gets its copies in the order of their instances.
GROUPS = {
    1: [(2, 0), (3, 0)],
    2: [(2, 1), (3, 2)],
    3: [(2, rid) for rid in range(1, 5)] + [(3, rid) for rid in range(1, 5)],
    4: [(2, 0), (77, 1), (3, 3)],  # port 77 does not exist
    5: [],
}


def frame(group: int, op: int, payload: bytes, label: int = 9) -> bytes:
    more = struct.pack("!IH", label, 0) if op == 1 else b""
    return struct.pack("!HBBHHB", group, op, 0, 0, 0, 0) + more + payload


class Switch:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.info = read_p4info(DATA / "multicast.p4info.txtpb")
        self.model = Interpreter(read_program(PROGRAM.read_bytes()))
        client.become_primary()
        client.set_pipeline(PROGRAM.read_bytes(), self.info)

    def group(self, number: int, copies: list[tuple[int, int]], kind: int = p4r.Update.INSERT) -> None:
        update = p4r.Update(type=kind)  # type: ignore[arg-type]
        entry = update.entity.packet_replication_engine_entry.multicast_group_entry
        entry.multicast_group_id = number
        for port, instance in copies:
            entry.replicas.add(egress_port=port, instance=instance)
        self.client.write(update)
        self.model.groups[number] = copies


@pytest.fixture(params=TARGETS)
def switch(request: pytest.FixtureRequest, namespace: Namespace, tmp_path: Path) -> Iterator[Switch]:
    with three_ports(request.param, namespace, tmp_path) as client:
        yield Switch(client)


@pytest.fixture
def ebpf(namespace: Namespace, tmp_path: Path) -> Iterator[Switch]:
    with three_ports("ebpf", namespace, tmp_path) as client:
        yield Switch(client)


def test_a_group_gets_copies_by_instance_and_port() -> None:
    model = Interpreter(read_program(PROGRAM.read_bytes()))
    model.groups = {7: [(3, 2), (2, 1)]}
    out = model.run(1, frame(7, 1, b"payload"))
    # Instance 1 adds a header in front of the received header. Instance 2 removes the received header. The
    # length is the frame's length in ingress, and the instance type is that of a copy.
    assert [port for port, _ in out] == [2, 3]
    assert out[0][1][:9] == struct.pack("!HBBHHB", 7, 1, 1, 2, 9 + 6 + 7, 5)
    assert (out[0][1][9:13], out[0][1][15:]) == (struct.pack("!I", 8), struct.pack("!IH", 9, 0) + b"payload")
    assert out[1][1] == struct.pack("!HBBHHB", 7, 1, 2, 3, 9 + 6 + 7, 5) + b"payload"
    # A group takes precedence over egress_spec, even over a drop there. mark_to_drop() removes the group.
    assert len(model.run(1, frame(7, 4, b""))) == 2
    assert model.run(1, frame(7, 3, b"")) == []
    assert [port for port, _ in model.run(1, frame(0, 0, b""))] == [2]
    assert model.run(1, frame(8, 0, b"")) == []


@pytest.mark.root
def test_frames_are_copied_alike(switch: Switch, namespace: Namespace) -> None:
    rng = random.Random(11)
    for number, copies in GROUPS.items():
        switch.group(number, copies)
    frames = [
        frame(group, op, rng.randbytes(size))
        for group in (0, 1, 2, 3, 4, 5, 6)
        for op, size in ((0, 60), (1, 1400), (2, 333), (3, 99), (4, 4096))
    ]
    frames.append(frame(3, 1, rng.randbytes(8_900)))
    frames += [
        frame(rng.randrange(1, 4), rng.randrange(3), rng.randbytes(rng.randrange(46, 900))) for _ in range(30)
    ]
    compare_copies(namespace, switch.model, frames)
    switch.group(3, [(3, 3)], p4r.Update.MODIFY)
    compare_copies(namespace, switch.model, [frame(3, 1, bytes(80))])


@pytest.mark.root
def test_a_group_of_256_copies(ebpf: Switch, namespace: Namespace) -> None:
    """256 copies need more than one call of the program. A group cannot have more copies."""
    ebpf.group(9, [(2, rid) for rid in range(256)])
    names = Names(ebpf.info)
    compare_copies(namespace, ebpf.model, [frame(9, 1, bytes(range(200)))])
    (read,) = ebpf.client.read(names.counter("E.copies", 1))
    assert (read.counter_entry.data.packet_count, read.counter_entry.data.byte_count) == (1, 9 + 6 + 200)
    # The next frame on the same CPU must count as a new frame, not as another copy.
    compare_copies(namespace, ebpf.model, [frame(0, 0, bytes(64))] * 4)
