"""Packet-in and packet-out: primary clients get frames for the CPU port, and send frames into it."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import finsy as fy
import grpc
import pytest
from finsy.proto import p4i, p4r
from google.protobuf import text_format

from mrclab.shell_environment import ShellEnvironmentError, shell_python
from mrclab.switches.ebpf.p4runtime.packet_io import ControllerHeader, controller_headers
from mrclab.switches.ebpf.p4runtime.status import P4RuntimeError
from mrclab.switches.p4_model import Interpreter
from mrclab.switches.v1model.bmv2_json import read_program
from tests.support.multicast_program import FIELDS, KEY, frame, p4info
from tests.support.switch_fixtures import TARGETS
from tests.support.switch_kit import DATA, Client, Namespace, receive, three_ports

pytestmark = pytest.mark.parallel

Code = grpc.StatusCode
CPU = 510
PROGRAM = DATA / "multicast.json"
GROUPS = {6: [(2, 1), (CPU, 2)], 7: [(CPU, 3), (CPU, 4)]}


def packet_out(payload: bytes, **values: int) -> p4r.StreamMessageRequest:
    out = p4r.StreamMessageRequest()
    out.packet.payload = payload
    for number, (name, _) in enumerate(FIELDS, 1):
        value = values.get(name, 0)
        out.packet.metadata.add(
            metadata_id=number, value=value.to_bytes(max(1, -(-value.bit_length() // 8)), "big")
        )
    return out


def payload_of(message: p4r.StreamMessageResponse) -> bytes:
    """Return the frame of a packet-in."""
    assert message.WhichOneof("update") == "packet", message
    values = [int.from_bytes(m.value, "big") for m in message.packet.metadata]
    assert [m.metadata_id for m in message.packet.metadata] == [1, 2, 3, 4, 5, 6]
    return KEY.pack(*values) + message.packet.payload


def write_groups(client: Client, model: Interpreter) -> None:
    for number, copies in GROUPS.items():
        update = p4r.Update(type=p4r.Update.INSERT)
        entry = update.entity.packet_replication_engine_entry.multicast_group_entry
        entry.multicast_group_id = number
        for port, instance in copies:
            entry.replicas.add(egress_port=port, instance=instance)
        client.write(update)
        model.groups[number] = copies


@pytest.fixture
def model() -> Interpreter:
    return Interpreter(read_program(PROGRAM.read_bytes()))


@pytest.fixture(params=TARGETS)
def client(
    request: pytest.FixtureRequest, namespace: Namespace, tmp_path: Path, model: Interpreter
) -> Iterator[Client]:
    with three_ports(request.param, namespace, tmp_path, CPU) as client:
        client.become_primary()
        client.set_pipeline(PROGRAM.read_bytes(), p4info())
        write_groups(client, model)
        yield client


def test_metadata_is_the_fields_of_a_header_in_a_row() -> None:
    header = ControllerHeader("packet_in", ((1, "port", 9), (2, "reason", 7), (5, "more", 16)))
    packet = header.read(bytes([0b10000001, 0b1_0000011, 0x00, 0x2A]) + b"payload")
    assert packet is not None
    assert [(m.metadata_id, m.value) for m in packet.metadata] == [
        (1, b"\x01\x03"),
        (2, b"\x03"),
        (5, b"\x2a"),
    ]
    assert packet.payload == b"payload"
    assert header.read(b"abc") is None  # the program sent less than the header
    same = p4r.PacketOut(payload=b"payload", metadata=reversed(packet.metadata))
    with pytest.raises(P4RuntimeError):  # a frame of eleven bytes
        header.write(same)
    same.payload += b"..."
    assert header.write(same) == bytes([0b10000001, 0b1_0000011, 0x00, 0x2A]) + b"payload..."
    assert controller_headers(p4i.P4Info())["packet_out"].write(p4r.PacketOut(payload=bytes(14))) == bytes(14)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({1: b"\x01"}, "metadata reason of packet_out is missing"),
        ({1: b"\x01", 2: b"\x02", 7: b"\x01"}, "packet_out has no metadata 7"),
        ({1: b"\x02\x00", 2: b"\x02"}, "packet_out, port: 0x200 does not fit 9 bits"),
        ({1: b"", 2: b"\x02"}, "packet_out, port: empty byte string"),
    ],
)
def test_a_packet_out_that_does_not_fit_is_refused(values: dict[int, bytes], said: str) -> None:
    header = ControllerHeader("packet_out", ((1, "port", 9), (2, "reason", 7)))
    packet = p4r.PacketOut(payload=bytes(60))
    for number, value in values.items():
        packet.metadata.add(metadata_id=number, value=value)
    with pytest.raises(P4RuntimeError, match=said) as caught:
        header.write(packet)
    assert caught.value.code is Code.INVALID_ARGUMENT


def test_a_controller_header_of_another_name_is_refused() -> None:
    info = text_format.Parse('controller_packet_metadata { preamble { name: "digest" } }', p4i.P4Info())
    with pytest.raises(P4RuntimeError, match="controller header digest is neither packet_in nor packet_out"):
        controller_headers(info)


@pytest.mark.root
def test_packets_go_both_ways(client: Client, namespace: Namespace, model: Interpreter) -> None:
    sockets = {i: namespace.packet_socket(f"h{i}") for i in (1, 2)}
    for sent in (frame(6), frame(6, 1, 1400), frame(6, 2, 8_000), frame(7, 1)):
        sockets[1].send(sent)
        out = model.run(1, sent)
        wanted = sorted(f for p, f in out if p == CPU)  # BMv2 makes copies in no fixed order
        assert sorted(payload_of(client.hear()) for _ in wanted) == wanted
        assert receive(sockets[2], 1, 0.2 if sent[1] == 7 else 5) == [f for p, f in out if p == 2]
    for size, values in ((60, {"op": 0}), (1400, {"op": 2}), (8_000, {"group": 6, "op": 4})):
        payload = bytes(i * 3 & 0xFF for i in range(size))
        client.send(packet_out(payload, **values))
        head = KEY.pack(*(values.get(name, 0) for name, _ in FIELDS))
        out = model.run(CPU, head + payload)
        assert receive(sockets[2], 1) == [f for p, f in out if p == 2]
        wanted = sorted(f for p, f in out if p == CPU)  # BMv2 makes copies in no fixed order
        assert sorted(payload_of(client.hear()) for _ in wanted) == wanted
    for s in sockets.values():
        s.close()


@pytest.mark.root
def test_a_packet_out_that_does_not_fit_is_refused_and_not_sent(namespace: Namespace, tmp_path: Path) -> None:
    """Only the target ebpf is tested. BMv2 reports such an error only if its `StreamConfig` enables it."""
    with three_ports("ebpf", namespace, tmp_path, CPU) as client:
        client.become_primary()
        client.set_pipeline(PROGRAM.read_bytes(), p4info())
        listener = namespace.packet_socket("h2")
        wrong = packet_out(bytes(60))
        wrong.packet.metadata[0].metadata_id = 9
        client.send(wrong)
        error = client.hear().error
        assert error.canonical_code == Code.INVALID_ARGUMENT.value[0]
        assert error.WhichOneof("details") == "packet_out"
        backup = Client(client.address, 4, election=0)
        backup.send(p4r.StreamMessageRequest())
        with pytest.raises(grpc.RpcError):  # a stream must begin with arbitration
            backup.hear()
        backup.close()
        assert receive(listener, 1, 0.2) == []
        listener.close()


@pytest.mark.root
def test_primaries_only_send_and_hear(namespace: Namespace, tmp_path: Path, model: Interpreter) -> None:
    """No role has a configuration here, so each role may access all of the pipeline (section 5.2)."""
    with three_ports("ebpf", namespace, tmp_path, CPU) as client:
        client.arbitrate(9)
        assert client.hear().arbitration.status.code == 0
        client.send(packet_out(bytes(60)))
        assert client.hear().error.canonical_code == Code.FAILED_PRECONDITION.value[0]  # no pipeline
        client.set_pipeline(PROGRAM.read_bytes(), p4info())
        write_groups(client, model)
        backup, other = Client(client.address, 4), Client(client.address, 4)
        backup.arbitrate(5)
        other.arbitrate(1, role="other")
        for c in (backup, other):
            assert c.hear().WhichOneof("update") == "arbitration"
        backup.send(packet_out(bytes(60)))
        assert backup.hear().error.canonical_code == Code.PERMISSION_DENIED.value[0]
        sender = namespace.packet_socket("h1")
        sender.send(frame(6))
        (want,) = (f for p, f in model.run(1, frame(6)) if p == CPU)
        assert payload_of(client.hear()) == payload_of(other.hear()) == want
        backup.send(p4r.StreamMessageRequest(packet=p4r.PacketOut()))
        assert backup.hear().WhichOneof("update") == "error"  # there is no packet before the error
        sender.close()
        for c in (backup, other):
            c.close()


@pytest.mark.root
def test_without_a_cpu_port_nothing_can_be_sent(namespace: Namespace, tmp_path: Path) -> None:
    with three_ports("ebpf", namespace, tmp_path) as client:
        client.become_primary()
        client.set_pipeline(PROGRAM.read_bytes(), p4info())
        client.send(packet_out(bytes(60)))
        error = client.hear().error
        assert (error.canonical_code, "--cpu-port" in error.message) == (9, True)


@pytest.mark.root
def test_finsy_sends_and_receives(
    client: Client, namespace: Namespace, model: Interpreter, tmp_path: Path
) -> None:
    info = tmp_path / "program.p4info.txtpb"
    info.write_text(text_format.MessageToString(p4info()))
    listener, sender = namespace.packet_socket("h2"), namespace.packet_socket("h1")
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def ready(sw: fy.Switch) -> None:
        await sw.write(fy.P4PacketOut(bytes(range(100)), group=0, op=1, rid=0, port=0, length=0, type=0))
        await sw.write(+fy.P4MulticastGroupEntry(6, replicas=((2, 1), (CPU, 2))))
        packets = sw.read_packets()
        asyncio.get_running_loop().call_soon(sender.send, frame(6, 0, 99))
        async for packet in packets:
            heard.put_nowait(KEY.pack(*(packet[name] for name, _ in FIELDS)) + packet.payload)

    options = fy.SwitchOptions(
        p4info=info, p4blob=PROGRAM, device_id=4, initial_election_id=100, ready_handler=ready, p4force=True
    )

    async def run() -> bytes:
        switch = asyncio.create_task(fy.Switch("s", client.address, options).run())
        try:
            return await asyncio.wait_for(heard.get(), 30)
        finally:
            switch.cancel()

    received = asyncio.run(run())
    head = KEY.pack(0, 1, 0, 0, 0, 0)
    (sent,) = (f for p, f in model.run(CPU, head + bytes(range(100))) if p == 2)
    assert receive(listener, 1) == [sent]
    assert [received] == [f for p, f in model.run(1, frame(6, 0, 99)) if p == CPU]
    listener.close()
    sender.close()


SHELL = """
import sys
import p4runtime_sh.shell as sh
address, info, program = sys.argv[1:]
sh.setup(device_id=4, grpc_addr=address, election_id=(0, 1000), config=sh.FwdPipeConfig(info, program))
group = sh.MulticastGroupEntry(9)
group.add(510, 3)
group.insert()
out = sh.PacketOut()
out.payload = bytes(range(80))
for name in ("op", "rid", "port", "length", "type"):
    out.metadata[name] = "0"
out.metadata["group"] = "9"
packets = []
out.send()
sh.PacketIn().sniff(lambda m: packets.append(m), timeout=3)
(message,) = packets
print("HEARD", "".join(m.value.hex() + " " for m in message.packet.metadata), message.packet.payload.hex())
sh.teardown()
"""


@pytest.mark.root
@pytest.mark.slow
def test_the_shell_sends_and_receives(client: Client, model: Interpreter, tmp_path: Path) -> None:
    try:
        python = shell_python()
    except ShellEnvironmentError as error:
        if "CI" in os.environ:
            raise
        pytest.skip(str(error))
    info = tmp_path / "program.p4info.txtpb"
    info.write_text(text_format.MessageToString(p4info()))
    done = subprocess.run(
        [python, "-c", SHELL, client.address, str(info), str(PROGRAM)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    # This group did not exist before, because BMv2 keeps the groups of the old pipeline.
    model.groups[9] = [(CPU, 3)]
    ((_, want),) = model.run(CPU, KEY.pack(9, 0, 0, 0, 0, 0) + bytes(range(80)))
    values = [f"{value:0{2 + 2 * (value > 255)}x}" for value in KEY.unpack_from(want)]
    assert f"HEARD {' '.join(values)}  {want[KEY.size :].hex()}" in done.stdout
