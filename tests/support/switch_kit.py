"""Shared parts of the tests of switches: namespaces with veth pairs, a P4Runtime client, frames."""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import socket
import struct
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
from finsy.proto import p4i, p4r, p4r_grpc, rpc_status
from google.protobuf import text_format

from mrclab.switches.p4_model import Interpreter
from mrclab.switches.spec import SwitchSpec
from mrclab.switches.target import select_target
from tests.support.paths import ROOT, SWITCH_DATA

DATA = SWITCH_DATA
JSON = ROOT / "p4src/build/mrc_switch.json"
P4INFO = ROOT / "p4src/build/mrc_switch.p4info.txtpb"
T = TypeVar("T")


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True)


class Namespace:
    """A network namespace for a test. `pair(a, b)` makes a veth pair in it; `run` runs a function in it."""

    def __init__(self) -> None:
        self.name = f"swt-{uuid.uuid4().hex[:8]}"
        ip("netns", "add", self.name)
        ip("-n", self.name, "link", "set", "lo", "up")

    def pair(self, a: str, b: str, mtu: int = 9000) -> None:
        n = self.name
        ip("-n", n, "link", "add", a, "mtu", str(mtu), "type", "veth", "peer", "name", b, "mtu", str(mtu))
        for end in (a, b):
            # Without IPv6 there is no neighbour discovery, so only the test sends frames.
            flag = f"/proc/sys/net/ipv6/conf/{end}/disable_ipv6"
            subprocess.run(["ip", "netns", "exec", n, "sh", "-c", f"echo 1 > {flag}"], check=False)
            ip("-n", n, "link", "set", end, "up")

    def run(self, work: Callable[[], T]) -> T:
        """Run a function in a thread that is in this namespace. Its new sockets stay in the namespace."""
        result: list[Any] = []

        def body() -> None:
            try:
                fd = os.open(f"/run/netns/{self.name}", os.O_RDONLY)
                try:
                    if ctypes.CDLL(None, use_errno=True).setns(fd, 0x40000000):
                        raise OSError(ctypes.get_errno(), "setns")
                finally:
                    os.close(fd)
                result.append((True, work()))
            except BaseException as exc:
                result.append((False, exc))

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        fine, value = result[0]
        if not fine:
            raise value
        return value

    def packet_socket(self, interface: str) -> socket.socket:
        def make() -> socket.socket:
            # With another protocol than 0, the socket would receive from all interfaces until it is bound.
            s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
            s.bind((interface, 3))
            s.settimeout(5)
            return s

        return self.run(make)

    def qdiscs(self) -> str:
        return subprocess.run(
            ["tc", "-n", self.name, "qdisc", "show"], check=True, capture_output=True, text=True
        ).stdout

    def delete(self) -> None:
        ip("netns", "del", self.name)


@contextlib.contextmanager
def forwarded(ns: Namespace, address: str) -> Iterator[str]:
    """Yield a loopback address of this namespace. Forward its connections to `address` in ``ns``."""
    host, _, port = address.rpartition(":")
    listener = socket.create_server(("127.0.0.1", 0))
    open_sockets: list[socket.socket] = [listener]

    def pump(origin: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := origin.recv(65536):
                to.sendall(data)
        with contextlib.suppress(OSError):
            to.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = ns.run(lambda: socket.create_connection((host, int(port))))
                open_sockets.extend((near, far))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        for s in open_sockets:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
            s.close()


class Client:
    """A plain P4Runtime client of one device, which uses the generated stub directly."""

    def __init__(self, address: str, device_id: int, election: int = 1) -> None:
        self.address = address
        self.device_id = device_id
        self.election = election
        self.channel = grpc.insecure_channel(address)
        self.stub = p4r_grpc.P4RuntimeStub(self.channel)
        self._out: queue.Queue[p4r.StreamMessageRequest | None] = queue.Queue()
        self.stream = self.stub.StreamChannel(iter(self._out.get, None))

    def arbitrate(self, election: int | None = None, role: str = "") -> None:
        if election is not None:
            self.election = election
        request = p4r.StreamMessageRequest()
        request.arbitration.device_id = self.device_id
        request.arbitration.election_id.low = self.election
        if role:
            request.arbitration.role.name = role
        self.send(request)

    def send(self, request: p4r.StreamMessageRequest) -> None:
        self._out.put(request)

    def hear(self) -> p4r.StreamMessageResponse:
        return next(self.stream)

    def become_primary(self) -> None:
        self.arbitrate()
        assert self.hear().arbitration.status.code == 0

    def set_pipeline(
        self,
        json: bytes,
        info: p4i.P4Info,
        action: Any = p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
        cookie: int = 1,
    ) -> None:
        request = p4r.SetForwardingPipelineConfigRequest(device_id=self.device_id, action=action)
        request.election_id.low = self.election
        request.config.p4info.CopyFrom(info)
        request.config.p4_device_config = json
        request.config.cookie.cookie = cookie
        self.stub.SetForwardingPipelineConfig(request)

    def write(self, *updates: p4r.Update) -> tuple[int, int]:
        """Write the updates. Return mrclab's times before and after the write, or (0, 0) elsewhere."""
        request = p4r.WriteRequest(device_id=self.device_id, updates=updates)
        request.election_id.low = self.election
        _, call = self.stub.Write.with_call(request)
        stamps = dict(call.trailing_metadata())
        return int(stamps.get("mrclab-t-before-ns", 0)), int(stamps.get("mrclab-t-after-ns", 0))

    def read(self, *entities: p4r.Entity) -> list[p4r.Entity]:
        request = p4r.ReadRequest(device_id=self.device_id, entities=entities)
        return [e for response in self.stub.Read(request) for e in response.entities]

    def close(self) -> None:
        self._out.put(None)
        self.channel.close()


@contextlib.contextmanager
def three_ports(
    choice: str, namespace: Namespace, log_dir: Path, cpu_port: int | None = None
) -> Iterator[Client]:
    """Yield a client of a switch on the target `choice`. The client is not primary, and no program is loaded.

    Its device_id is 4. Ports 1 to 3 lead to the interfaces h1 to h3 of the namespace.
    """
    for i in (1, 2, 3):
        namespace.pair(f"s{i}", f"h{i}")
    target = select_target(choice)
    spec = SwitchSpec("s", 4, {i: f"s{i}" for i in (1, 2, 3)}, cpu_port)
    (running,) = target.start([spec], netns=namespace.name, log_dir=log_dir)
    try:
        with forwarded(namespace, running.grpc_address) as address:
            client = Client(address, 4)
            try:
                yield client
            finally:
                client.close()
    finally:
        target.stop()


class Names:
    """A maker of P4Runtime entries from the names in a P4Info."""

    def __init__(self, info: p4i.P4Info) -> None:
        self.info = info
        self.tables = {t.preamble.name: t for t in info.tables}
        self.actions = {a.preamble.name: a for a in info.actions}
        self.counters = {c.preamble.name: c for c in info.counters}

    def entry(
        self, table: str, match: dict[str, Any], action: str = "", *args: int, priority: int = 0
    ) -> p4r.TableEntry:
        """Return a table entry.

        The values of `match` are a number, (number, prefix length), (value, "&", mask), (low, "..", high) or,
        for an optional field, ("?", number).
        """
        t = self.tables[table]
        out = p4r.TableEntry(table_id=t.preamble.id, priority=priority)
        fields = {f.name: f for f in t.match_fields}
        for name, value in match.items():
            f = fields[name]
            m = out.match.add(field_id=f.id)
            if isinstance(value, int):
                m.exact.value = octets(value)
            elif value[0] == "?":
                m.optional.value = octets(value[1])
            elif len(value) == 2:
                m.lpm.value, m.lpm.prefix_len = octets(value[0]), value[1]
            elif value[1] == "&":
                m.ternary.value, m.ternary.mask = octets(value[0]), octets(value[2])
            else:
                m.range.low, m.range.high = octets(value[0]), octets(value[2])
        if action:
            a = self.actions[action]
            out.action.action.action_id = a.preamble.id
            for p, arg in zip(a.params, args, strict=True):
                out.action.action.params.add(param_id=p.id, value=octets(arg))
        return out

    def counter(self, name: str, index: int | None = None) -> p4r.Entity:
        out = p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=self.counters[name].preamble.id))
        if index is not None:
            out.counter_entry.index.index = index
        return out


def octets(value: int) -> bytes:
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def insert(entry: p4r.TableEntry) -> p4r.Update:
    return p4r.Update(type=p4r.Update.INSERT, entity=p4r.Entity(table_entry=entry))


def modify(entry: p4r.TableEntry) -> p4r.Update:
    return p4r.Update(type=p4r.Update.MODIFY, entity=p4r.Entity(table_entry=entry))


def delete(entry: p4r.TableEntry) -> p4r.Update:
    return p4r.Update(type=p4r.Update.DELETE, entity=p4r.Entity(table_entry=entry))


def read_p4info(path: Path) -> p4i.P4Info:
    return text_format.Parse(path.read_text(), p4i.P4Info())


MY_SID, NEXT_HOP = "MrcIngress.micro_segment.my_sid", "MrcIngress.micro_segment.next_hop"
IN_FAULT, OUT_FAULT = "MrcIngress.ingress_fault", "MrcEgress.egress_fault"
DST = "hdr.ipv6.dst_addr"
BLOCK = 0xFCBB0000


def sid(*usids: int) -> int:
    """Return a uSID container: the block, then the given 16-bit identifiers."""
    value, shift = BLOCK << 96, 80
    for u in usids:
        value |= u << shift
        shift -= 16
    return value


def ipv6_frame(dst: int, size: int = 154, hop_limit: int = 64, fill: int = 0) -> bytes:
    """Return an Ethernet and IPv6 frame of `size` bytes whose payload is a pattern."""
    payload = bytes((i * 7 + fill) & 0xFF for i in range(size - 54))
    head = struct.pack("!IHBB", 6 << 28 | 5 << 20, len(payload), 59, hop_limit)
    source = bytes(15) + b"\x01"
    return b"\x02" * 6 + b"\x04" * 6 + b"\x86\xdd" + head + source + dst.to_bytes(16, "big") + payload


def mrc_frame(
    dst: int,
    payload: int,
    *,
    dscp: int = 0,
    ecn: int = 0,
    hop_limit: int = 64,
    stamped: bool = False,
    imm: bool = False,
) -> bytes:
    """Return a write of MRC, 138 bytes and payload: IPv6 in IPv6, UDP, BTH, METH, [TSETH], RETH, ICRC.

    The ICRC is a pattern, because no switch checks it.
    """
    bth = struct.pack("!BBHII", 0xCB if imm else 0xCA, 0, 0xFFFF, 7, (0x10 if stamped else 0) << 24 | 99)
    rest = b"METH" + (b"TSET" if stamped else b"") + b"RETHRETHRETHRETH" + (b"IMM." if imm else b"")
    rest += bytes(i * 5 & 0xFF for i in range(payload)) + b"ICRC"
    udp = struct.pack("!HHHH", 0xE123, 4791, 20 + len(rest), 0)
    inner = struct.pack("!IHBB", 6 << 28 | 5, 20 + len(rest), 17, 64) + bytes(31) + b"\x07"
    word = 6 << 28 | dscp << 22 | ecn << 20 | 5
    outer = struct.pack("!IHBB", word, 60 + len(rest), 41, hop_limit) + bytes(15) + b"\x01"
    head = b"\x02" * 6 + b"\x04" * 6 + b"\x86\xdd" + outer + dst.to_bytes(16, "big")
    return head + inner + udp + bth + rest


def srh(
    segments: Sequence[int], left: int, next_hdr: int, tlvs: bytes = b"", last: int | None = None
) -> bytes:
    """Return a Segment Routing Header (RFC 8754 section 2). The first of `segments` is the last to visit."""
    length = 2 * len(segments) + len(tlvs) // 8
    entry = max(len(segments) - 1, 0) if last is None else last
    head = struct.pack("!BBBBBBH", next_hdr, length, 4, left, entry, 0, 0x7A6)
    return head + b"".join(s.to_bytes(16, "big") for s in segments) + tlvs


def list_frame(
    dst: int, header: bytes, carried: bytes, next_hdr: int = 43, ecn: int = 0, hop_limit: int = 64
) -> bytes:
    """Return a frame with an outer IPv6 header, `header` (a routing header or b"") and `carried`."""
    head = struct.pack("!IHBB", 6 << 28 | ecn << 20 | 5, len(header + carried), next_hdr, hop_limit)
    addresses = bytes(15) + b"\x01" + dst.to_bytes(16, "big")
    return b"\x02" * 6 + b"\x04" * 6 + b"\x86\xdd" + head + addresses + header + carried


def ipv6_packet(dst: int, payload: bytes, next_hdr: int = 59, ecn: int = 0, hop_limit: int = 64) -> bytes:
    """Return an IPv6 packet without an Ethernet header."""
    head = struct.pack("!IHBB", 6 << 28 | ecn << 20 | 9, len(payload), next_hdr, hop_limit)
    return head + bytes(15) + b"\x07" + dst.to_bytes(16, "big") + payload


def probe_frame(
    dst: int, *, capacity: int = 8, used: int = 0, version: int = 1, encapsulated: bool = True
) -> bytes:
    """Return a path probe (p4src/probe.p4) in IPv6 and UDP, with or without an outer IPv6 header."""
    probe = struct.pack("!BBBBIQ", version, capacity, used, 0, 0x1D1D1D1D, 0x5E57)
    probe += bytes(i + 1 & 0xFF for i in range(20 * min(used, 9)))
    probe += bytes(20 * max(capacity - used, 0)) + b"tail"
    udp = struct.pack("!HHHH", 0xC000, 4799, 8 + len(probe), 0) + probe
    addresses = bytes(15) + b"\x01" + dst.to_bytes(16, "big")
    if encapsulated:
        udp = struct.pack("!IHBB", 6 << 28 | 5, len(udp), 17, 64) + addresses[:16] + bytes(16) + udp
    outer = struct.pack("!IHBB", 6 << 28 | 46 << 22 | 5, len(udp), 41 if encapsulated else 17, 64)
    return b"\x02" * 6 + b"\x04" * 6 + b"\x86\xdd" + outer + addresses + udp


def records_at(frame: bytes) -> int:
    """Return the offset of the first record of a probe."""
    return 54 + (40 if frame[20] == 41 else 0) + 8 + 16


def without_times(out: bytes) -> bytes:
    """Return a probe with the time of each record set to zero."""
    frame, start = bytearray(out), records_at(out)
    for at in range(start + 12, len(frame) - 7, 20):
        frame[at : at + 8] = bytes(8)
    return bytes(frame)


_SOL_PACKET, _PACKET_AUXDATA = 263, 8


def receive(s: socket.socket, count: int, timeout: float = 5.0) -> list[bytes]:
    """Return the frames that a packet socket receives until the timeout, at most `count` frames.

    Frames that the socket sent are left out. If the kernel removed a VLAN tag, this function puts it back.
    """
    out: list[bytes] = []
    deadline = time.monotonic() + timeout
    s.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
    while len(out) < count and (left := deadline - time.monotonic()) > 0:
        s.settimeout(left)
        try:
            data, ancillary, _, address = s.recvmsg(65536, 256)
        except TimeoutError:
            break
        for level, kind, value in ancillary:
            if (level, kind) == (_SOL_PACKET, _PACKET_AUXDATA):
                status, _, _, _, _, tci, tpid = struct.unpack_from("=IIIHHHH", value)
                if status & 0x10:
                    data = data[:12] + struct.pack("!HH", tpid or 0x8100, tci) + data[12:]
        if address[2] != socket.PACKET_OUTGOING:
            out.append(data)
    return out


def compare_frames(
    ns: Namespace,
    model: Interpreter,
    frames: list[bytes],
    view: Callable[[bytes], bytes] = bytes,
    ports: tuple[int, ...] = (1, 2, 3),
) -> None:
    """Send frames into h1 one by one and check that the ports send the same frames as the model.

    `view` removes the parts of a frame that may differ, such as timestamps.
    """
    sockets = {i: ns.packet_socket(f"h{i}") for i in ports}
    # BMv2 captures into a ring of some thirty frames. A long series of unanswered frames would overflow it.
    silent, answered = 0, None
    for frame in frames:
        if silent == 8 and answered is not None:
            _exchange(model, sockets, answered, view)
            silent = 0
        if _exchange(model, sockets, frame, view):
            silent, answered = 0, frame
        else:
            silent += 1
    # No frame may arrive that should have been dropped.
    for s in sockets.values():
        assert receive(s, 1, 0.2) == []
        s.close()


def _exchange(
    model: Interpreter, sockets: dict[int, socket.socket], frame: bytes, view: Callable[[bytes], bytes]
) -> bool:
    expected = [(p, f) for p, f in model.run(1, frame) if p in sockets]
    sockets[1].send(frame)
    for port, want in expected:
        got = [view(f) for f in receive(sockets[port], 1, 2)]
        assert got == [view(want)], (frame.hex(), [g.hex() for g in got], want.hex())
    return bool(expected)


def error_codes(error: grpc.RpcError) -> list[grpc.StatusCode]:
    """Return the canonical code of each update of a failed Write."""
    known = {code.value[0]: code for code in grpc.StatusCode}
    data = dict(error.trailing_metadata())["grpc-status-details-bin"]
    out = []
    for detail in rpc_status.Status.FromString(data).details:
        update = p4r.Error()
        assert detail.Unpack(update)
        out.append(known[update.canonical_code])
    return out


def compare_copies(namespace: Namespace, model: Interpreter, frames: list[bytes]) -> None:
    """Send frames one by one and compare what each port receives, in any order: BMv2 fixes no order."""
    sockets = {i: namespace.packet_socket(f"h{i}") for i in (1, 2, 3)}
    try:
        for sent in frames:
            expected = model.run(1, sent)
            sockets[1].send(sent)
            for port in (2, 3):
                want = [f for p, f in expected if p == port]
                got = receive(sockets[port], len(want), 2)
                assert sorted(f.hex() for f in got) == sorted(f.hex() for f in want), sent.hex()
        for port in (1, 2, 3):
            assert receive(sockets[port], 1, 0.2) == []
    finally:
        for s in sockets.values():
            s.close()
