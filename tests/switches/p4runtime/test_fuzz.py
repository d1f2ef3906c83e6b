"""Random requests, valid and invalid, and random frames: the server answers, and nothing leaks.

MRCLAB_FUZZ_S is the duration in seconds (a few by default), MRCLAB_FUZZ_SEED the first seed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from finsy.proto import p4i, p4r
from google.protobuf.descriptor import FieldDescriptor

from mrclab.linux import bpf
from mrclab.switches.ebpf.target import EbpfTarget
from mrclab.switches.p4_model import CloneSession
from mrclab.switches.spec import SwitchSpec
from tests.support.again_program import frame as frame_again
from tests.support.again_program import session_update
from tests.support.kernel_watch import KernelLog, locked_memory, programs, taint
from tests.support.multicast_program import frame as frame_multicast
from tests.support.multicast_program import p4info as multicast_p4info
from tests.support.switch_kit import DATA, Client, Namespace, forwarded, read_p4info

pytestmark = [pytest.mark.root, pytest.mark.parallel, pytest.mark.timeout(3600)]
SECONDS = float(os.environ.get("MRCLAB_FUZZ_S", "4"))
SEED = int(os.environ.get("MRCLAB_FUZZ_SEED", "1"))
BROKEN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.DEADLINE_EXCEEDED)
PROGRAMS = (
    "select", "resources", "match", "ternary", "registers", "digests", "multicast", "queues", "paths",
    "again",
)  # fmt: skip
COPYING = ("again", "multicast")
CPU = 510
PORTS = (0, 1, 2, 3, 7, CPU, 511, 1 << 20)
QDISCS = (
    ("replace", "root", "tbf", "rate", "1mbit", "burst", "3000", "limit", "30000"),
    ("replace", "root", "tbf", "rate", "20gbit", "burst", "300000", "limit", "30000"),
    ("del", "root"),
)


class Messages:
    """Random messages about a program. Many numbers in the messages are ids of the program."""

    def __init__(self, rng: random.Random, info: p4i.P4Info) -> None:
        self.rng = rng
        lists = (
            info.tables, info.actions, info.action_profiles, info.counters, info.direct_counters,
            info.meters, info.direct_meters, info.registers, info.digests,
        )  # fmt: skip
        self.ids = [o.preamble.id for objects in lists for o in objects] or [1]
        self.info = info

    def number(self) -> int:
        rng = self.rng
        return rng.choice(
            [0, 1, 2, 3, rng.randrange(20), rng.choice(self.ids), -1, 1 << 31, rng.getrandbits(62), 1024]
        )

    def octets(self) -> bytes:
        return self.rng.choice(
            [b"", b"\0", self.rng.randbytes(1), self.rng.randbytes(self.rng.randrange(40))]
        )

    def scalar(self, field: Any) -> Any:
        kinds = FieldDescriptor
        match field.cpp_type:
            case kinds.CPPTYPE_STRING:
                return self.octets() if field.type == kinds.TYPE_BYTES else self.rng.choice(["", "x"])
            case kinds.CPPTYPE_BOOL:
                return self.rng.random() < 0.2
            case kinds.CPPTYPE_ENUM:
                return self.rng.choice([v.number for v in field.enum_type.values])
            case kinds.CPPTYPE_INT32:
                return max(min(self.number(), (1 << 31) - 1), -(1 << 31))
            case kinds.CPPTYPE_UINT32:
                return self.number() & 0xFFFFFFFF
            case kinds.CPPTYPE_UINT64:
                return self.number() & ((1 << 64) - 1)
            case kinds.CPPTYPE_INT64:
                return self.number()
        return 0.5

    def fill(self, message: Any, depth: int = 0) -> Any:
        """Set fields of a message at random."""
        for field in message.DESCRIPTOR.fields:
            if self.rng.random() > (0.5 if depth < 3 else 0.3):
                continue
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                continue
            if field.is_repeated:
                for _ in range(self.rng.randrange(3)):
                    if field.message_type is not None:
                        self.fill(getattr(message, field.name).add(), depth + 1)
                    else:
                        getattr(message, field.name).append(self.scalar(field))
            elif field.message_type is not None:
                if depth < 6:
                    getattr(message, field.name).SetInParent()
                    self.fill(getattr(message, field.name), depth + 1)
            else:
                setattr(message, field.name, self.scalar(field))
        return message

    def entry(self) -> p4r.Entity:
        """Return a table entry that is almost valid."""
        rng, table = self.rng, self.rng.choice(self.info.tables)
        out = p4r.Entity()
        entry = out.table_entry
        entry.table_id = table.preamble.id
        entry.is_default_action = rng.random() < 0.1
        for f in table.match_fields:
            value = rng.getrandbits(min(f.bitwidth, 3)).to_bytes(1, "big")
            m = entry.match.add(field_id=f.id)
            match f.match_type:
                case p4i.MatchField.LPM:
                    m.lpm.value, m.lpm.prefix_len = value, f.bitwidth
                case p4i.MatchField.TERNARY:
                    m.ternary.value, m.ternary.mask = value, b"\x07"
                case p4i.MatchField.RANGE:
                    m.range.low, m.range.high = b"\0", value
                case p4i.MatchField.OPTIONAL:
                    m.optional.value = value
                case _:
                    m.exact.value = value
            if f.match_type != p4i.MatchField.EXACT:
                entry.priority = rng.randrange(1, 5)
        if all(f.match_type in (p4i.MatchField.EXACT, p4i.MatchField.LPM) for f in table.match_fields):
            entry.priority = 0
        if table.implementation_id:
            if rng.random() < 0.3:
                entry.action.action_profile_member_id = rng.randrange(1, 5)
            elif rng.random() < 0.5:
                entry.action.action_profile_group_id = rng.randrange(1, 5)
            else:
                one = entry.action.action_profile_action_set.action_profile_actions.add(weight=1)
                self.action(table, one.action)
        else:
            self.action(table, entry.action.action)
        return out

    def action(self, table: p4i.Table, to: p4r.Action) -> None:
        actions = {a.preamble.id: a for a in self.info.actions}
        action = actions[self.rng.choice(table.action_refs).id]
        to.action_id = action.preamble.id
        for p in action.params:
            to.params.add(param_id=p.id, value=b"\x05")

    def replication(self) -> p4r.Entity:
        """Return a clone session or a multicast group that is almost valid."""
        rng, out = self.rng, p4r.Entity()
        entry = out.packet_replication_engine_entry
        to: p4r.CloneSessionEntry | p4r.MulticastGroupEntry
        if rng.random() < 0.7:
            to = entry.clone_session_entry
            to.session_id = rng.randrange(0, 6)
            to.packet_length_bytes = rng.choice([0, 0, 0, 20, 64, 2000, -1])
            to.class_of_service = rng.choice([0, 0, 0, 5, 9])
        else:
            to = entry.multicast_group_entry
            to.multicast_group_id = rng.randrange(0, 9)
        for _ in range(rng.choice([0, 1, 2, 3, 40])):
            replica = to.replicas.add(egress_port=rng.choice(PORTS), instance=rng.choice([0, 1, 2, 1 << 16]))
            if rng.random() < 0.1:
                replica.port = self.octets()
        return out

    def packet_out(self) -> p4r.StreamMessageRequest:
        """Return a packet-out message with the program's metadata, sometimes with an error in one field."""
        rng, out = self.rng, p4r.StreamMessageRequest()
        out.packet.payload = rng.choice([rng.randbytes(rng.randrange(300)), rng.randbytes(9300), b""])
        for header in self.info.controller_packet_metadata:
            if header.preamble.name == "packet_out":
                for field in header.metadata:
                    value = rng.getrandbits(rng.choice([3, field.bitwidth]))
                    octets = value.to_bytes(max(1, -(-value.bit_length() // 8)), "big")
                    out.packet.metadata.add(metadata_id=field.id, value=octets)
        what = rng.random()
        if what < 0.1:
            del out.packet.metadata[:1]
        elif what < 0.2 and out.packet.metadata:
            rng.choice(out.packet.metadata).value = self.octets()
        elif what < 0.3:
            out.packet.metadata.add(metadata_id=self.number() & 0xFFFFFFFF, value=self.octets())
        elif what < 0.5:  # messages that the program itself makes for a frame
            out.packet.payload = asking(rng)
        return out

    def entity(self) -> p4r.Entity:
        rng = self.rng
        if rng.random() < 0.15:
            return self.replication()
        if self.info.tables and rng.random() < 0.5:
            return self.entry()
        out = p4r.Entity()
        field = rng.choice(list(p4r.Entity.DESCRIPTOR.fields))
        getattr(out, field.name).SetInParent()
        self.fill(getattr(out, field.name))
        if self.info.tables and rng.random() < 0.5 and out.HasField("action_profile_member"):
            member = out.action_profile_member
            profile = rng.choice(list(self.info.action_profiles) or [p4i.ActionProfile()])
            member.action_profile_id, member.member_id = profile.preamble.id, rng.randrange(1, 5)
            self.action(rng.choice(self.info.tables), member.action)
        return out

    def update(self) -> p4r.Update:
        return p4r.Update(type=self.rng.choice([0, 1, 1, 1, 2, 3]), entity=self.entity())


def asking(rng: random.Random) -> bytes:
    """Return a frame that makes `again` or `multicast` copy, resubmit or recirculate it."""
    size = rng.choice([0, 1, 40, 40, 1400])
    if rng.random() < 0.5:
        return frame_multicast(rng.randrange(9), rng.randrange(8), size + 8)
    op, count = rng.getrandbits(7), rng.choice([0, 1, 2, 255])
    return frame_again(op, rng.randrange(6), count, rng.randrange(5), rng.randbytes(size))


def copies() -> list[p4r.Update]:
    """Return clone sessions and multicast groups that also lead to the CPU port."""
    out = [session_update(number, CloneSession([(2, 1), (CPU, 2)])) for number in (1, 2)]
    for number in (1, 6):
        update = p4r.Update(type=p4r.Update.INSERT)
        entry = update.entity.packet_replication_engine_entry.multicast_group_entry
        entry.multicast_group_id = number
        for port in (2, CPU):
            entry.replicas.add(egress_port=port, instance=port & 3)
        out.append(update)
    return out


def listen(client: Client) -> Counter[str | None]:
    """Count the server's messages to a client as they arrive."""
    counts: Counter[str | None] = Counter()

    def body() -> None:
        with contextlib.suppress(grpc.RpcError):
            for message in client.stream:
                counts[message.WhichOneof("update")] += 1

    threading.Thread(target=body, daemon=True).start()
    return counts


def held(pid: int) -> Counter[str]:
    """Return how many descriptors of each kind a process has open."""
    links: list[str] = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(os.readlink(path))
        except FileNotFoundError:
            continue
    return Counter(link.split("[")[0] for link in links)


def resident(pid: int) -> int:
    """Return the resident memory of a process in kB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def only(name: str, count: int, timeout: float = 10.0) -> bool:
    """Wait until ``count`` programs of that name are loaded. Return False after the timeout."""
    deadline = time.monotonic() + timeout
    while len(programs(name)) != count:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture
def kernel() -> Iterator[KernelLog]:
    """Yield the kernel's log. At the end, check that it has no warning."""
    tainted, kmsg = taint(), KernelLog()
    try:
        yield kmsg
        assert kmsg.alarms() == []
        assert taint() == tainted
    finally:
        kmsg.close()


def test_the_watch_sees_programs_come_and_go() -> None:
    name = f"w{os.urandom(5).hex()}"
    assert programs(name) == []
    fd = bpf.load_program(bytes.fromhex("b7000000000000009500000000000000"), name)
    assert len(programs(name)) == 1
    assert locked_memory(os.getpid()) > 0
    os.close(fd)
    assert only(name, 0)


@pytest.mark.slow
def test_random_requests_and_frames(namespace: Namespace, tmp_path: Path, kernel: KernelLog) -> None:
    rng = random.Random(SEED)
    name = f"f{os.urandom(5).hex()}"
    for i in (1, 2):
        namespace.pair(f"s{i}", f"h{i}")
    target = EbpfTarget()
    specs = [SwitchSpec(name, 1, {1: "s1", 2: "s2"}, CPU)]
    (running,) = target.start(specs, netns=namespace.name, log_dir=tmp_path)
    (pid,) = target.pids()
    sources = {
        n: (read_p4info(DATA / f"{n}.p4info.txtpb"), (DATA / f"{n}.json").read_bytes()) for n in PROGRAMS
    }
    # Only this P4Info describes the metadata of a packet-out. For the P4 program it is an ordinary header.
    sources["multicast"] = (multicast_p4info(), sources["multicast"][1])
    wire = namespace.packet_socket("h1")
    try:
        with forwarded(namespace, running.grpc_address) as address:
            client = Client(address, 1)
            client.become_primary()

            def load(program: str) -> Messages:
                info, json = sources[program]
                client.set_pipeline(json, info)
                if program in COPYING:
                    client.write(*copies())
                return Messages(rng, info)

            for program in PROGRAMS:
                load(program)
            load(PROGRAMS[0])
            before, memory, locked = held(pid), resident(pid), locked_memory(pid)
            assert only(name, 1)
            deadline, requests, codes = time.monotonic() + SECONDS, 0, set()
            outs, full, heard = 0, 0, listen(client)
            broken: list[grpc.RpcError] = []
            messages = load(PROGRAMS[0])
            while time.monotonic() < deadline:
                requests += 1
                sent = rng.randbytes(rng.randrange(18, 200)) if rng.random() < 0.5 else asking(rng)
                try:
                    wire.send(sent)
                except OSError as exc:
                    # The kernel's backlog is full of copies that one of the last frames has caused.
                    if exc.errno != errno.ENOBUFS:
                        raise
                    full += 1
                try:
                    what = rng.random()
                    if what < 0.003:
                        command = ["tc", "-n", namespace.name, "qdisc", *rng.choice(QDISCS)]
                        command[5:5] = ["dev", rng.choice(["s1", "s2"])]
                        subprocess.run(command, capture_output=True, check=False)
                    elif what < 0.02:
                        messages = load(rng.choice(PROGRAMS))
                    elif what < 0.6:
                        request = p4r.WriteRequest(device_id=1, atomicity=rng.choice([0, 0, 1, 2]))
                        request.election_id.low = 1
                        request.updates.extend(messages.update() for _ in range(rng.randrange(1, 6)))
                        client.stub.Write(request, timeout=60)
                    elif what < 0.9:
                        list(
                            client.stub.Read(
                                p4r.ReadRequest(device_id=1, entities=[messages.entity()]), timeout=60
                            )
                        )
                    elif what < 0.93:
                        for _ in range(rng.randrange(1, 20)):
                            client.send(messages.packet_out())
                            outs += 1
                    elif what < 0.96:
                        wild = messages.fill(p4r.SetForwardingPipelineConfigRequest(device_id=1))
                        wild.device_id = 1
                        wild.election_id.Clear()
                        wild.election_id.low = 1
                        client.stub.SetForwardingPipelineConfig(wild, timeout=60)
                    else:
                        other = Client(address, rng.randrange(3), rng.randrange(2))
                        other.send(messages.fill(p4r.StreamMessageRequest()))
                        other.close()
                except grpc.RpcError as exc:
                    codes.add(exc.code())
                    if exc.code() in BROKEN or "Unexpected" in (exc.details() or ""):
                        broken.append(exc)
                if broken or (requests % 256 == 0 and kernel.alarms()):
                    break
            assert not broken
            load(PROGRAMS[0])
            assert target.alive()
            assert len(client.read(p4r.Entity(table_entry=p4r.TableEntry()))) == 0
            after = held(pid)
            # Do not compare sockets, because grpc keeps some connections for a while.
            del after["socket:"], before["socket:"]
            assert after == before
            assert locked_memory(pid) == locked
            assert only(name, 1)
            # A run of minutes must take no more memory than a run of seconds.
            assert resident(pid) < memory + 60_000
            seen = "watched" if kernel.readable else "not readable"
            print(
                f"{requests} requests, codes {sorted(c.name for c in codes)}, {resident(pid)} kB "
                f"({memory} at first), {locked} bytes of maps, kernel log {seen}, taint {taint()}, "
                f"{outs} packet-outs, {full} backlogs full, heard {dict(heard)}"
            )
            client.close()
    finally:
        wire.close()
        target.stop()
    assert only(name, 0)
    text = (tmp_path / "switches.log").read_text()
    assert "Traceback" not in text, text[-3000:]
