"""Programs as in a course on P4. The tests compute the expected frames from the text of each exercise.

Each program runs on real ports over P4Runtime, also on BMv2 if it is installed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from finsy.proto import p4r

from mrclab.switches.hashes import CRCS, checksum, crc
from tests.support.switch_fixtures import TARGETS
from tests.support.switch_kit import (
    DATA,
    Client,
    Names,
    Namespace,
    insert,
    octets,
    read_p4info,
    receive,
    three_ports,
)

pytestmark = [pytest.mark.root, pytest.mark.parallel]
A, B, NEXT = b"\x02\0\0\0\0\x0a", b"\x02\0\0\0\0\x0b", b"\x02\0\0\0\0\xee"
HOST_A, HOST_B = 0x0A000101, 0x0A000202


class Lab:
    """A switch with three ports that runs a program."""

    def __init__(self, client: Client, names: Names, namespace: Namespace) -> None:
        self.client, self.names = client, names
        self.sockets = {i: namespace.packet_socket(f"h{i}") for i in (1, 2, 3)}

    def add(self, table: str, match: dict[str, Any], action: str, *args: int) -> None:
        self.client.write(insert(self.names.entry(table, match, action, *args)))

    def default(self, table: str, action: str, *args: int) -> None:
        entry = p4r.TableEntry(table_id=self.names.tables[table].preamble.id, is_default_action=True)
        declared = self.names.actions[action]
        entry.action.action.action_id = declared.preamble.id
        for param, arg in zip(declared.params, args, strict=True):
            entry.action.action.params.add(param_id=param.id, value=octets(arg))
        self.client.write(p4r.Update(type=p4r.Update.MODIFY, entity=p4r.Entity(table_entry=entry)))

    def expect(self, port: int, frame: bytes, *out: tuple[int, bytes]) -> None:
        """Send a frame into a port. Only the frames in `out` may come out."""
        self.sockets[port].send(frame)
        for i, want in out:
            assert [f.hex() for f in receive(self.sockets[i], 1)] == [want.hex()]

    def silent(self) -> None:
        """Check that no more frames have come out of any port."""
        for s in self.sockets.values():
            assert receive(s, 1, 0.2) == []


@contextmanager
def lab(program: str, choice: str, namespace: Namespace, log_dir: Path) -> Iterator[Lab]:
    with three_ports(choice, namespace, log_dir) as client:
        info = read_p4info(DATA / f"{program}.p4info.txtpb")
        client.become_primary()
        client.set_pipeline((DATA / f"{program}.json").read_bytes(), info)
        made = Lab(client, Names(info), namespace)
        yield made
        made.silent()
        for s in made.sockets.values():
            s.close()


def ethernet(dst: bytes, src: bytes, kind: int, payload: bytes) -> bytes:
    return dst + src + struct.pack("!H", kind) + payload


def ipv4(src: int, dst: int, payload: bytes, *, ttl: int = 64, protocol: int = 17, length: int = 0) -> bytes:
    """Return an IPv4 packet (RFC 791) with its checksum."""
    size = length or 20 + len(payload)
    head = struct.pack("!BBHHHBBHII", 0x45, 0, size, 7, 0, ttl, protocol, 0, src, dst)
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload


@pytest.mark.parametrize("choice", TARGETS)
def test_a_router_counts_the_ttl_down_and_keeps_the_checksum_right(
    choice: str, namespace: Namespace, tmp_path: Path
) -> None:
    with lab("router", choice, namespace, tmp_path) as s:
        s.add("I.routes", {"hdr.ipv4.dst": (0x0A000200, 24)}, "I.route", int.from_bytes(NEXT, "big"), 2)
        s.add("I.routes", {"hdr.ipv4.dst": (0x0A000202, 32)}, "I.route", int.from_bytes(NEXT, "big"), 3)
        data = bytes(range(90))
        for dst, port in ((HOST_B + 1, 2), (HOST_B, 3)):
            sent = ethernet(B, A, 0x800, ipv4(HOST_A, dst, data))
            s.expect(1, sent, (port, ethernet(NEXT, B, 0x800, ipv4(HOST_A, dst, data, ttl=63))))
        # The switch drops packets without a route, with a TTL of 1, with a wrong checksum, or without IPv4.
        s.expect(1, ethernet(B, A, 0x800, ipv4(HOST_A, 0x0B000001, data)))
        s.expect(1, ethernet(B, A, 0x800, ipv4(HOST_A, HOST_B, data, ttl=1)))
        wrong = bytearray(ethernet(B, A, 0x800, ipv4(HOST_A, HOST_B, data)))
        wrong[24] ^= 1
        s.expect(1, bytes(wrong))
        s.expect(1, ethernet(B, A, 0x86DD, data))


@pytest.mark.parametrize("choice", TARGETS)
def test_a_tunnel_is_entered_followed_and_left(choice: str, namespace: Namespace, tmp_path: Path) -> None:
    with lab("router", choice, namespace, tmp_path) as s:
        s.add("I.routes", {"hdr.ipv4.dst": (0x0A000200, 24)}, "I.into", 100, 2)
        s.add("I.tunnels", {"hdr.tunnel.id": 100}, "I.along", 3)
        s.add("I.tunnels", {"hdr.tunnel.id": 200}, "I.out_of", 2)
        packet = ipv4(HOST_A, HOST_B, bytes(100))

        def tunnelled(number: int) -> bytes:
            return ethernet(B, A, 0x1212, struct.pack("!HH", 0x800, number) + packet)

        plain = ethernet(B, A, 0x800, packet)
        s.expect(1, plain, (2, tunnelled(100)))
        s.expect(1, tunnelled(100), (3, tunnelled(100)))
        s.expect(1, tunnelled(200), (2, plain))
        s.expect(1, tunnelled(300))


@pytest.mark.parametrize("choice", TARGETS)
def test_a_calculator_answers(choice: str, namespace: Namespace, tmp_path: Path) -> None:
    with lab("calculator", choice, namespace, tmp_path) as s:

        def question(op: bytes, a: int, b: int, version: int = 1) -> bytes:
            return struct.pack("!HB", 0x5034, version) + op + struct.pack("!II", a, b)

        for op, a, b, result in (
            (b"+", 40, 2, 42),
            (b"+", 0xFFFFFFFF, 3, 2),
            (b"-", 1, 2, 0xFFFFFFFF),
            (b"&", 0xF0F0, 0xFF00, 0xF000),
            (b"|", 0xF0F0, 0xFF00, 0xFFF0),
            (b"^", 0xF0F0, 0xFF00, 0x0FF0),
        ):
            asked = question(op, a, b)
            answered = asked + struct.pack("!I", result) + bytes(40)
            s.expect(3, ethernet(B, A, 0x88B5, asked + bytes(44)), (3, ethernet(A, B, 0x88B5, answered)))
        s.expect(3, ethernet(B, A, 0x88B5, question(b"*", 1, 2) + bytes(44)))
        s.expect(3, ethernet(B, A, 0x88B5, question(b"+", 1, 2, version=2) + bytes(44)))
        s.expect(3, ethernet(B, A, 0x88B5, b"P4"))  # too short for the lookahead


@pytest.mark.slow
@pytest.mark.parametrize("choice", TARGETS)
def test_a_firewall_lets_in_what_inside_began(choice: str, namespace: Namespace, tmp_path: Path) -> None:
    def tcp(src: int, dst: int, from_port: int, to_port: int, flags: int) -> bytes:
        segment = struct.pack("!HHIIHHHH", from_port, to_port, 1, 2, 0x5000 | flags, 100, 0, 0) + bytes(40)
        return ethernet(B, A, 0x800, ipv4(src, dst, segment, protocol=6))

    with lab("firewall", choice, namespace, tmp_path) as s:
        outward, inward = tcp(HOST_A, HOST_B, 4000, 80, 2), tcp(HOST_B, HOST_A, 80, 4000, 0x12)
        s.expect(2, inward)
        s.expect(1, tcp(HOST_A, HOST_B, 4000, 80, 0x10), (2, tcp(HOST_A, HOST_B, 4000, 80, 0x10)))
        s.expect(2, inward)  # there was no SYN
        s.silent()  # BMv2 processes frames of different ports in any order
        s.expect(1, outward, (2, outward))
        s.expect(2, inward, (1, inward))
        s.expect(2, tcp(HOST_B, HOST_A, 81, 4000, 0x12))
        # The bits must be at the places that the hashes of the five-tuple give.
        flow = struct.pack("!IIHHB", HOST_A, HOST_B, 4000, 80, 6)
        registers = {r.preamble.name: r.preamble.id for r in s.names.info.registers}
        if choice == "ebpf":  # BMv2 cannot read registers over P4Runtime
            for name, cell in (
                ("I.filter_a", crc(CRCS["crc16"], flow) % 4096),
                ("I.filter_b", zlib.crc32(flow) % 4096),
            ):
                entity = p4r.Entity(register_entry=p4r.RegisterEntry(register_id=registers[name]))
                found = [e.register_entry for e in s.client.read(entity)]
                assert [e.index.index for e in found if e.data.bitstring == b"\x01"] == [cell]


@pytest.mark.slow
@pytest.mark.parametrize("choice", TARGETS)
def test_paths_of_equal_cost_are_chosen_by_flow(choice: str, namespace: Namespace, tmp_path: Path) -> None:
    with lab("paths", choice, namespace, tmp_path) as s:
        s.add("I.group", {"hdr.ipv4.dst": (0x0A000200, 24)}, "I.spread", 10, 2)
        for bucket, port in ((10, 2), (11, 3)):
            s.add("I.next", {"m.bucket": bucket}, "I.hop", port)
        ports = []
        for src in range(HOST_A, HOST_A + 16):
            port = 2 + crc(CRCS["crc16"], struct.pack("!IIB", src, HOST_B, 17)) % 2
            sent, out = (ethernet(B, A, 0x800, ipv4(src, HOST_B, bytes(64), ttl=t)) for t in (64, 63))
            s.expect(1, sent, (port, out))
            ports.append(port)
        assert set(ports) == {2, 3}


@pytest.mark.slow
@pytest.mark.parametrize("choice", TARGETS)
def test_a_frame_carries_its_route(choice: str, namespace: Namespace, tmp_path: Path) -> None:
    def routed(ports: list[int], packet: bytes) -> bytes:
        hops = b"".join(struct.pack("!H", (i == len(ports) - 1) << 15 | port) for i, port in enumerate(ports))
        return ethernet(B, A, 0x1234 if ports else 0x800, hops + packet)

    packet = ipv4(HOST_A, HOST_B, bytes(range(64)))
    with lab("paths", choice, namespace, tmp_path) as s:
        for ports in ([2, 3, 1, 2], [3, 2], [2]):
            s.expect(1, routed(ports, packet), (ports[0], routed(ports[1:], packet)))
        s.expect(1, routed([2, 2, 2, 2, 2], packet))  # more labels than the stack has room for


@pytest.mark.slow
@pytest.mark.parametrize("choice", TARGETS)
def test_each_switch_writes_its_record_in_front(choice: str, namespace: Namespace, tmp_path: Path) -> None:
    def recorded(records: list[tuple[int, int]], ttl: int) -> bytes:
        rows = b"".join(struct.pack("!II", *r) for r in records)
        data = struct.pack("!H", len(records)) + rows + bytes(range(70))
        return ethernet(B, A, 0x800, ipv4(HOST_A, HOST_B, data, ttl=ttl, protocol=253))

    with lab("paths", choice, namespace, tmp_path) as s:
        s.add("I.group", {"hdr.ipv4.dst": (HOST_B, 32)}, "I.spread", 0, 1)
        s.add("I.next", {"m.bucket": 0}, "I.hop", 2)
        s.default("E.trace", "E.record", 77)
        records: list[tuple[int, int]] = []
        for ttl in range(64, 60, -1):
            sent = recorded(records, ttl)
            records = [(77, len(sent)), *records]
            s.expect(1, sent, (2, recorded(records, ttl - 1)))
        s.expect(1, recorded(records, 60), (2, recorded(records, 59)))  # there is no room for a fifth record


@pytest.mark.slow
@pytest.mark.parametrize("choice", TARGETS)
def test_a_bridge_floods_to_all_other_ports(choice: str, namespace: Namespace, tmp_path: Path) -> None:
    with lab("bridge", choice, namespace, tmp_path) as s:
        update = p4r.Update(type=p4r.Update.INSERT)
        group = update.entity.packet_replication_engine_entry.multicast_group_entry
        group.multicast_group_id = 1
        for port in (1, 2, 3):
            group.replicas.add(egress_port=port, instance=1)
        s.client.write(update)
        s.add("I.addresses", {"hdr.ethernet.dst": int.from_bytes(B, "big")}, "I.send", 3)
        unknown, known = ethernet(b"\xff" * 6, A, 0x9000, bytes(60)), ethernet(B, A, 0x9000, bytes(60))
        for port in (1, 2, 3):
            others = {1, 2, 3} - {port}
            s.expect(port, unknown, *((other, unknown) for other in others))
        s.expect(1, known, (3, known))
        s.expect(3, known)  # egress drops frames that would go back
