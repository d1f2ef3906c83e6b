"""Clones, resubmit and recirculate: which frames enter again, their metadata, and their results."""

from __future__ import annotations

import json
import random
import re
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from finsy.proto import p4r

from mrclab.linux.errors import UnsupportedError
from mrclab.switches.ebpf.codegen.translation import translate
from mrclab.switches.p4_model import CloneSession, Interpreter
from mrclab.switches.v1model.bmv2_json import read_program
from tests.support.again_program import WAY, frame, session_update
from tests.support.switch_fixtures import TARGETS
from tests.support.switch_kit import (
    DATA,
    Client,
    Names,
    Namespace,
    compare_copies,
    error_codes,
    read_p4info,
    receive,
    three_ports,
)

pytestmark = pytest.mark.parallel

PROGRAM = DATA / "again.json"
# The values of a frame's field `op`: the last three bits are a request. In addition, 8 drops the frame, 16
# multicasts it, 32 shortens it to 40 bytes in ingress, and 64 says that another header follows.
CLONE, RESUBMIT, CLONE_OF_EGRESS, RECIRCULATE, CUT_A_COPY = range(1, 6)
DROP, MULTICAST, CUT, MORE = 8, 16, 32, 64
SESSIONS = {
    1: CloneSession([(3, 2)]),
    2: CloneSession([(2, 0), (3, 3)]),
    3: CloneSession([(2, rid) for rid in range(12)]),
    9: CloneSession([(3, 9)]),
}
GROUP = [(2, 1), (3, 2)]


def way(out: bytes) -> dict[str, int]:
    names = (
        "op session count fields parsed_type type rid port from length first second_high second_low rounds"
    )
    return dict(zip(names.split(), WAY.unpack_from(out), strict=True))


class Switch:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.info = read_p4info(DATA / "again.p4info.txtpb")
        self.model = Interpreter(read_program(PROGRAM.read_bytes()))
        client.become_primary()
        client.set_pipeline(PROGRAM.read_bytes(), self.info)
        for number, session in SESSIONS.items():
            self.session(number, session)
        update = p4r.Update(type=p4r.Update.INSERT)
        entry = update.entity.packet_replication_engine_entry.multicast_group_entry
        entry.multicast_group_id = 1
        for port, instance in GROUP:
            entry.replicas.add(egress_port=port, instance=instance)
        client.write(update)
        self.model.groups[1] = GROUP

    def session(self, number: int, session: CloneSession, kind: int = p4r.Update.INSERT) -> None:
        self.client.write(session_update(number, session, kind))
        self.model.sessions[number] = session

    def counted(self, name: str) -> list[tuple[int, int]]:
        """Return packets and bytes by instance type."""
        entities = self.client.read(Names(self.info).counter(name))
        entries = sorted((e.counter_entry for e in entities), key=lambda c: c.index.index)
        return [(c.data.packet_count, c.data.byte_count) for c in entries]


@pytest.fixture(params=TARGETS)
def switch(request: pytest.FixtureRequest, namespace: Namespace, tmp_path: Path) -> Iterator[Switch]:
    with three_ports(request.param, namespace, tmp_path) as client:
        yield Switch(client)


@pytest.fixture
def ebpf(namespace: Namespace, tmp_path: Path) -> Iterator[Switch]:
    with three_ports("ebpf", namespace, tmp_path) as client:
        yield Switch(client)


@pytest.fixture
def model() -> Interpreter:
    out = Interpreter(read_program(PROGRAM.read_bytes()))
    out.sessions.update(SESSIONS)
    out.groups[1] = GROUP
    return out


def test_a_clone_of_ingress_is_the_frame_that_came_in(model: Interpreter) -> None:
    sent = frame(CLONE, 1, 5, fields=2)
    (to, original), (port, clone) = model.run(1, sent)
    # The original has gone through ingress: third is 77, and first is 1005 plus 1.
    assert (to, way(original)["first"], way(original)["rounds"]) == (2, 1006 + 77, 1)
    assert (way(original)["type"], way(original)["from"], way(original)["length"]) == (0, 1, len(sent))
    # The clone has not gone through ingress. It has only the fields of the list: first, second, rounds.
    seen = way(clone)
    assert (port, seen["rid"], seen["type"], seen["first"], seen["rounds"]) == (3, 2, 1, 1006, 0)
    assert (seen["second_high"], seen["second_low"]) == (10, 1)
    assert (seen["from"], seen["length"]) == (0, len(sent))
    # Without a list, these fields of a clone are 0. If a frame asks for several clones, only the last one is
    # made. Frames that are dropped are cloned, too.
    _, (_, bare) = model.run(1, frame(CLONE, 1, 5))
    assert (way(bare)["first"], way(bare)["second_low"]) == (0, 0)
    assert [port for port, _ in model.run(1, frame(CLONE | DROP, 2))] == [2, 3]
    assert [port for port, _ in model.run(1, frame(CLONE, 7))] == [2]  # this session does not exist


def test_a_clone_of_egress_has_what_egress_left(model: Interpreter) -> None:
    (_, original), (port, clone) = model.run(1, frame(CLONE_OF_EGRESS, 1, 3, fields=0))
    assert way(original)["rounds"] == way(clone)["rounds"] == 2  # the value after egress, not before
    assert (port, way(clone)["type"], way(clone)["port"]) == (3, 2, 3)
    assert clone[WAY.size : WAY.size + 4] == original[WAY.size : WAY.size + 4] == struct.pack("!I", 1003)
    # A clone can be cloned again, as often as the preserved `rounds` allows. Dropped frames are cloned, too.
    out = model.run(1, frame(CLONE_OF_EGRESS, 1, 2, fields=1))
    assert [(p, way(f)["type"]) for p, f in out] == [(2, 0), (3, 2), (3, 2)]
    assert model.run(1, frame(CLONE_OF_EGRESS, 1, 4, fields=1)) == []


def test_a_frame_that_begins_anew_does_so_with_its_list(model: Interpreter) -> None:
    """Resubmit uses the frame as it arrived (instance_type 6). Recirculate uses the deparsed frame (4)."""
    ((port, out),) = model.run(1, frame(RESUBMIT, count=3, fields=2))
    assert (port, way(out)["parsed_type"], way(out)["rounds"], way(out)["first"]) == (2, 6, 1, 1003 + 77)
    assert (way(out)["type"], way(out)["from"]) == (0, 0)  # in egress it is like any other frame
    assert out.count(struct.pack("!I", 5)) == 1  # one header was added, in the last round
    ((_, out),) = model.run(1, frame(RECIRCULATE, count=3, fields=4))
    assert (way(out)["parsed_type"], way(out)["rounds"], way(out)["first"]) == (4, 4, 77)
    assert way(out)["length"] == len(out)


def frames(rng: random.Random, op: int) -> Iterator[bytes]:
    for more in (0, DROP, MULTICAST, CUT, MORE, MULTICAST | CUT, MORE | DROP):
        for session in (1, 2, 3, 7):
            count, fields = rng.randrange(5), rng.choice((0, 1, 2, 4))
            if session != 1 or more & MULTICAST:
                count = min(count, 1)  # each request makes several frames
            out = bytearray(frame(op | more, session, count, fields, rng.randbytes(rng.randrange(40, 1400))))
            if rng.random() < 0.2:
                out[12:14] = b"\x81\x00"  # the kernel sees a tagged frame
            yield bytes(out)
    yield frame(op, 1, 1, 2, rng.randbytes(8_900))


@pytest.mark.root
def test_clones_are_made_alike(switch: Switch, namespace: Namespace) -> None:
    rng = random.Random(3)
    for op in (CLONE, CLONE_OF_EGRESS):
        compare_copies(namespace, switch.model, list(frames(rng, op)))


@pytest.mark.root
def test_frames_enter_again_alike(switch: Switch, namespace: Namespace) -> None:
    rng = random.Random(4)
    for op in (RESUBMIT, RECIRCULATE, CUT_A_COPY, 0):
        compare_copies(namespace, switch.model, list(frames(rng, op)))
    for name in ("I.came", "E.went"):
        cells = [switch.model.counters.get((name, i)) for i in range(8)]
        assert switch.counted(name) == [(c.packets, c.bytes) if c else (0, 0) for c in cells]


@pytest.mark.root
def test_sessions_are_read_back_and_cut_clones(ebpf: Switch, namespace: Namespace) -> None:
    rng = random.Random(5)
    ebpf.session(4, CloneSession([(3, 7), (2, 8)], 60, 3))
    ebpf.session(5, CloneSession([(3, 7)], 4))  # the limit is shorter than the headers, which stay
    wanted = p4r.Entity()
    wanted.packet_replication_engine_entry.clone_session_entry.session_id = 4
    (read,) = ebpf.client.read(wanted)
    assert read == session_update(4, ebpf.model.sessions[4]).entity
    wanted.packet_replication_engine_entry.clone_session_entry.session_id = 0
    assert len(ebpf.client.read(wanted)) == len(SESSIONS) + 2
    sent = [
        frame(op, session, 1, fields, rng.randbytes(size))
        for op in (CLONE, CLONE | CUT, CLONE | MORE, CLONE_OF_EGRESS)
        for session in (4, 5)
        for fields, size in ((0, 50), (1, 700), (2, 8_000))
    ]
    compare_copies(namespace, ebpf.model, sent)
    ebpf.session(4, CloneSession([(2, 1)]), p4r.Update.MODIFY)
    compare_copies(namespace, ebpf.model, sent)
    ebpf.client.write(session_update(4, ebpf.model.sessions.pop(4), p4r.Update.DELETE))
    compare_copies(namespace, ebpf.model, sent)
    with pytest.raises(grpc.RpcError) as refused:
        ebpf.client.write(session_update(6, CloneSession([(2, 1)], class_of_service=8)))
    assert error_codes(refused.value) == [grpc.StatusCode.INVALID_ARGUMENT]


def _classes(namespace: Namespace) -> dict[str, int]:
    text = subprocess.run(
        ["tc", "-n", namespace.name, "-s", "class", "show", "dev", "s3"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found = re.findall(r"class htb (1:\d+) .*?Sent \d+ bytes (\d+) pkt", text, re.DOTALL)
    return {name: int(count) for name, count in found}


@pytest.mark.root
def test_clones_have_the_class_of_their_session(ebpf: Switch, namespace: Namespace) -> None:
    def tc(*args: str) -> None:
        subprocess.run(["tc", "-n", namespace.name, *args], check=True)

    tc("qdisc", "add", "dev", "s3", "root", "handle", "1:", "htb", "default", "10")
    for minor in ("10", "15"):
        tc("class", "add", "dev", "s3", "parent", "1:", "classid", f"1:{minor}", "htb", "rate", "1gbit")
    ebpf.session(4, CloneSession([(3, 7)], 0, 5))
    compare_copies(namespace, ebpf.model, [frame(CLONE, 4)] * 3 + [frame(CLONE, 1)] * 2)
    assert _classes(namespace) == {"1:10": 2, "1:15": 3}


@pytest.mark.root
@pytest.mark.parametrize(("op", "kind"), [(RESUBMIT, 6), (RECIRCULATE, 4)])
def test_nothing_begins_anew_for_ever(ebpf: Switch, namespace: Namespace, op: int, kind: int) -> None:
    assert ebpf.model.run(1, frame(op, count=1, fields=3)) == []
    listener, sender = namespace.packet_socket("h2"), namespace.packet_socket("h1")
    sender.send(frame(op, count=1, fields=3))
    sender.send(frame(0, payload=bytes(99)))
    assert len(receive(listener, 1)[0]) == WAY.size + 99
    assert receive(listener, 1, 0.2) == []
    assert ebpf.counted("I.came")[kind][0] == 256
    listener.close()
    sender.close()


def test_metadata_that_is_too_wide_to_be_preserved_is_refused() -> None:
    raw = json.loads(PROGRAM.read_text())
    (scalars,) = (t for t in raw["header_types"] if t["name"] == "scalars_0")
    field = next(f for f in scalars["fields"] if f[0] == "meta_t.third")
    field[1] = 520
    raw["field_lists"][0]["elements"].append({"type": "field", "value": ["scalars", "meta_t.third"]})
    with pytest.raises(UnsupportedError, match=r"scalars\.meta_t\.third"):
        translate(read_program(json.dumps(raw)))
