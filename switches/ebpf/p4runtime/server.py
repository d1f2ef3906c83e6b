"""The P4Runtime service for all switches of a process, on one loopback address."""

# ruff: noqa: N802 (the methods bear the names of the remote procedures)

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import grpc
import grpc.aio
from finsy.proto import p4r, p4r_grpc

from linux.errors import BadInputError, SwitchError
from linux.link_monitor import LinkMonitor
from linux.scheduling import ABOVE_AGENTS, before_others
from linux.traffic_control import TrafficControl, ifindex_of
from switches.ebpf.codegen.compile import compile_json
from switches.ebpf.p4runtime.arbitration import Arbiter, Client
from switches.ebpf.p4runtime.device import Config, Device
from switches.ebpf.p4runtime.device_config import json_of
from switches.ebpf.p4runtime.entities.digests import digest_list
from switches.ebpf.p4runtime.packet_io import PACKET_IN, PACKET_OUT
from switches.ebpf.p4runtime.schema import bind
from switches.ebpf.p4runtime.status import DETAILS_KEY, Code, P4RuntimeError, batch_status, number
from switches.ebpf.plan.compiled import Compiled
from switches.ebpf.runtime.cpu_port import CpuPort
from switches.ebpf.runtime.datapath import SharedMaps
from switches.ebpf.runtime.power import power_handlers
from switches.ebpf.runtime.qdiscs import QdiscMonitor, drop_queue, set_queue, shapes_of
from switches.spec import SwitchSpec

log = logging.getLogger(__name__)

API_VERSION = "1.4.1"
BEFORE_KEY = "mrclab-t-before-ns"
AFTER_KEY = "mrclab-t-after-ns"
_MESSAGE_LIMIT = 64 << 20
_ENTITIES_PER_MESSAGE = 512
_FRAMES_AT_ONCE = 64  # of a CPU port, before other work has its turn
_MESSAGES_WAITING = 1024  # messages that wait for a client before packet-ins and errors are lost
_SCAN_S = 0.01  # between two looks for idle entries
_REST_S = 0.1  # where no entry has a timeout

_Request = p4r.SetForwardingPipelineConfigRequest
Context = Any  # grpc.aio.ServicerContext, generic in types that the stubs do not carry


class Programs:
    """Compiled programs by the digest of their JSON: a fabric compiles its program once."""

    def __init__(self) -> None:
        self._known: dict[bytes, asyncio.Future[Compiled]] = {}

    async def get(self, data: bytes) -> Compiled:
        """The compiled program; concurrent callers share one compilation. Raises SwitchError."""
        digest = hashlib.sha256(data).digest()
        if digest not in self._known:
            self._known[digest] = asyncio.ensure_future(asyncio.to_thread(compile_json, data))
        task = self._known[digest]
        try:
            return await asyncio.shield(task)
        except SwitchError:
            self._known.pop(digest, None)
            raise


class P4RuntimeServer(p4r_grpc.P4RuntimeServicer):
    """Serves P4Runtime for a set of switches that are told apart by their device ids.

    Needs the network namespace that has the interfaces, in which it must be created. Use as an asynchronous
    context manager, or `start` and `stop`. Raises BadInputError for specs that contradict each other.
    """

    def __init__(
        self,
        specs: Sequence[SwitchSpec],
        address: str,
        queues: Mapping[tuple[int, int], tuple[int, int]] = MappingProxyType({}),
    ) -> None:
        """`queues` gives ports, by device id and number, a queue: frames a second, and how many wait."""
        ids = [s.device_id for s in specs]
        if len(set(ids)) != len(ids):
            raise BadInputError("two switches have the same device id")
        used: dict[str, str] = {}
        for spec in specs:
            for port, interface in spec.ports.items():
                if not 0 <= port < 511:
                    raise BadInputError(f"{spec.name}: port {port} is not in 0..510")
                if interface in used:
                    raise BadInputError(
                        f"{spec.name}: interface {interface} is also a port of {used[interface]}"
                    )
                used[interface] = spec.name
        for spec in specs:
            if spec.cpu_port is not None and (spec.cpu_port in spec.ports or not 0 <= spec.cpu_port < 511):
                raise BadInputError(f"{spec.name}: CPU port {spec.cpu_port} is not in 0..510, or a port too")
        self.address = address
        self.port = 0
        self._shared = SharedMaps()
        self._tc = TrafficControl()
        self._links = LinkMonitor()
        self._port_of: dict[int, tuple[Device, int]] = {}
        self._qdiscs = QdiscMonitor()
        self._queues = dict(queues)
        self._cpu_ports: dict[int, CpuPort] = {}  # by device id
        shapes = partial(shapes_of, self._tc)
        self.devices = {s.device_id: Device(self._with_cpu_port(s), self._shared, shapes) for s in specs}
        self._arbiters = {i: Arbiter(i) for i in self.devices}
        self._locks = {i: asyncio.Lock() for i in self.devices}
        self._booted: dict[int, asyncio.Event] = {}  # of the devices that are off
        self.programs = Programs()
        self._messages: dict[bytes, p4r.ForwardingPipelineConfig] = {}
        self._sessions: set[_Session] = set()
        self._server: grpc.aio.Server | None = None
        self._watching: asyncio.Task[None] | None = None

    def _with_cpu_port(self, spec: SwitchSpec) -> SwitchSpec:
        """Make the CPU port of a switch, if it is to have one. Raises MachineError."""
        if spec.cpu_port is None:
            return spec
        self._cpu_ports[spec.device_id] = made = CpuPort()
        return replace(spec, ports={**spec.ports, spec.cpu_port: made.name})

    async def start(self) -> None:
        """Begin to listen; `port` then is the one that was bound. Raises BadInputError if it cannot be."""
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", _MESSAGE_LIMIT),
                ("grpc.max_send_message_length", _MESSAGE_LIMIT),
                ("grpc.so_reuseport", 0),
            ]
        )
        p4r_grpc.add_P4RuntimeServicer_to_server(self, self._server)
        self._server.add_generic_rpc_handlers((power_handlers(self._power_off, self._power_on),))
        try:
            self.port = self._server.add_insecure_port(self.address)
        except RuntimeError as exc:
            raise BadInputError(f"cannot listen on {self.address}: is it in use?") from exc
        # What a server that was killed has left on the ports would go on forwarding with its old entries.
        for device in self.devices.values():
            for port, ifindex in device.sweep(self._tc).items():
                self._port_of[ifindex] = (device, port)
        for (device_id, port), (rate, depth) in self._queues.items():
            set_queue(self._tc, ifindex_of(self.devices[device_id].spec.ports[port]), rate, depth)
        self._links_changed()
        asyncio.get_running_loop().add_reader(self._links, self._links_changed)
        for device_id, cpu_port in self._cpu_ports.items():
            asyncio.get_running_loop().add_reader(cpu_port, self._packets_in, device_id)
        asyncio.get_running_loop().add_reader(self._qdiscs, self._qdiscs_changed)
        await self._server.start()
        self._watching = asyncio.create_task(self._watch_idle())

    async def stop(self) -> None:
        """Stop listening, take every program off its ports, and leave nothing behind."""
        for session in self._sessions:
            session.end()
        if self._server is not None:
            await self._server.stop(grace=0.2)
            self._server = None
        asyncio.get_running_loop().remove_reader(self._links)
        asyncio.get_running_loop().remove_reader(self._qdiscs)
        for cpu_port in self._cpu_ports.values():
            asyncio.get_running_loop().remove_reader(cpu_port)
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        for device in self.devices.values():
            device.unload(self._tc)
        for device_id, port in self._queues:
            with contextlib.suppress(BadInputError):  # the interface may be gone
                drop_queue(self._tc, ifindex_of(self.devices[device_id].spec.ports[port]))
        self._qdiscs.close()
        for cpu_port in self._cpu_ports.values():
            cpu_port.close()
        self._links.close()
        self._shared.close()
        self._tc.close()

    def _links_changed(self) -> None:
        for ifindex, up in self._links.changes():
            if ifindex in self._port_of:
                device, port = self._port_of[ifindex]
                device.link_changed(port, up)

    def _qdiscs_changed(self) -> None:
        changed = self._qdiscs.changes()
        for device in {
            id(d): d for i, (d, _) in self._port_of.items() if changed is None or i in changed
        }.values():
            device.queues_changed()

    async def _watch_idle(self) -> None:
        """Tell primaries of entries that have become idle, and send them digests."""
        while True:
            busy = False
            for device_id, device in self.devices.items():
                if device.running is not None and device.running.digests.configs:
                    busy = True
                    self._send_digests(device_id, device)
                if device.idle is None or not device.idle.needed:
                    continue
                busy = True
                entries = device.idle.expired(time.monotonic_ns())
                if entries:
                    note = p4r.StreamMessageResponse()
                    note.idle_timeout_notification.timestamp = time.time_ns()
                    note.idle_timeout_notification.table_entry.extend(entries)
                    for client in self._arbiters[device_id].primaries():
                        client.send(note)
            await asyncio.sleep(_SCAN_S if busy else _REST_S)

    def _send_digests(self, device_id: int, device: Device) -> None:
        if device.config is None or device.running is None:
            return
        for ready in device.running.ready_digests():
            for client in self._arbiters[device_id].primaries():
                client.send(digest_list(ready, device.config.schema, time.time_ns()))

    def _packets_in(self, device_id: int) -> None:
        """Tell primaries of the frames that a switch has sent to its CPU port.

        One who does not read them as fast as they come gets no more than wait already.
        """
        device, primaries = self.devices[device_id], self._arbiters[device_id].primaries()
        for frame in self._cpu_ports[device_id].frames(_FRAMES_AT_ONCE):
            if device.config is None:
                continue
            packet = device.config.schema.packet_headers[PACKET_IN].read(frame)
            for client in primaries:
                if packet is not None and client.waiting() < _MESSAGES_WAITING:
                    client.send(p4r.StreamMessageResponse(packet=packet))

    def _packet_out(self, device_id: int, client: Client, packet: p4r.PacketOut) -> None:
        """Let a frame come in by the CPU port of a switch. Raises P4RuntimeError."""
        device = self._device(device_id)
        if client not in self._arbiters[device_id].primaries():
            raise P4RuntimeError(Code.PERMISSION_DENIED, "only a primary may send packets")
        if device.config is None:
            raise P4RuntimeError(
                Code.FAILED_PRECONDITION, "No forwarding pipeline config set for this device"
            )
        if device_id not in self._cpu_ports:
            message = "this switch has no CPU port: start it with --cpu-port"
            raise P4RuntimeError(Code.FAILED_PRECONDITION, message)
        self._cpu_ports[device_id].send(device.config.schema.packet_headers[PACKET_OUT].write(packet))

    async def __aenter__(self) -> P4RuntimeServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def load_json(self, device_id: int, data: bytes) -> None:
        """Run a program before any client has set a pipeline, as simple_switch_grpc does with a JSON file."""
        self.devices[device_id].load(await self.programs.get(data), self._tc)

    # -- requests ------------------------------------------------------------------------------------------

    def _device(self, device_id: int) -> Device:
        device = self.devices.get(device_id)
        if device is None:
            raise P4RuntimeError(Code.NOT_FOUND, f"no device {device_id}")
        device.reachable()
        return device

    async def _power_off(self, device_ids: Sequence[int], context: Context) -> tuple[int, int]:
        """Take switches out as a power cut would: their frames drop, all that was in them is lost."""
        try:
            devices = [self._device(i) for i in device_ids]
        except P4RuntimeError as exc:
            await context.abort(exc.code, exc.message)
        with before_others(ABOVE_AGENTS):
            before = time.monotonic_ns()
            for device in devices:
                device.silence()
            after = time.monotonic_ns()
        for device in devices:
            device.lose_power()
            device_id = device.spec.device_id
            self._booted[device_id] = asyncio.Event()
            self._arbiters[device_id] = Arbiter(device_id)
            for session in [s for s in self._sessions if s.device_id == device_id]:
                session.fail(P4RuntimeError(Code.UNAVAILABLE, f"{device.spec.name} was switched off"))
            log.info("%s: switched off", device.spec.name)
        return before, after

    async def _power_on(self, device_ids: Sequence[int], context: Context) -> tuple[int, int]:
        """Start switches that are off. They have no pipeline until a client sets one."""
        before = time.monotonic_ns()
        for device_id in device_ids:
            device = self.devices.get(device_id)
            if device is None or device_id not in self._booted:
                await context.abort(Code.FAILED_PRECONDITION, f"device {device_id} is not off")
                continue
            device.boot()
            self._booted.pop(device_id).set()
            log.info("%s: switched on", device.spec.name)
        return before, time.monotonic_ns()

    async def powered(self, device_id: int) -> None:
        """Wait while a device is off, as one waits for an answer from a machine that is."""
        if device_id in self._booted:
            await self._booted[device_id].wait()

    async def Capabilities(
        self, request: p4r.CapabilitiesRequest, context: Context
    ) -> p4r.CapabilitiesResponse:
        """Say which version of the API this is."""
        return p4r.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    async def SetForwardingPipelineConfig(
        self, request: _Request, context: Context
    ) -> p4r.SetForwardingPipelineConfigResponse:
        """Verify, save or commit a pipeline configuration (specification, section 14.1)."""
        try:
            device = self._device(request.device_id)
            self._arbiters[request.device_id].check(request.role, request.election_id)
            async with self._locks[request.device_id]:
                await self._set_pipeline(device, request)
        except P4RuntimeError as exc:
            await context.abort(exc.code, exc.message)
        except SwitchError as exc:
            log.warning("%s", exc)
            code = Code.INVALID_ARGUMENT if isinstance(exc, BadInputError) else Code.INTERNAL
            await context.abort(code, str(exc))
        return p4r.SetForwardingPipelineConfigResponse()

    async def _set_pipeline(self, device: Device, request: _Request) -> None:
        action = request.action
        if action == _Request.COMMIT:
            if request.HasField("config"):
                raise P4RuntimeError(Code.INVALID_ARGUMENT, "COMMIT takes no pipeline config")
            device.commit_saved(self._tc)
            return
        if action == _Request.UNSPECIFIED:
            raise P4RuntimeError(Code.INVALID_ARGUMENT, "an action is needed")
        if not request.HasField("config"):
            raise P4RuntimeError(Code.INVALID_ARGUMENT, "a pipeline config is needed")
        compiled = await self.programs.get(json_of(request.config.p4_device_config))
        device.reachable()  # it may have been switched off meanwhile
        config = Config(self._intern(request.config), bind(request.config.p4info, compiled), compiled)
        match action:
            case _Request.VERIFY:
                pass
            case _Request.VERIFY_AND_SAVE:
                device.save(config)
            case _Request.VERIFY_AND_COMMIT:
                device.commit(config, self._tc)
                log.info("%s: pipeline set on %d ports", device.spec.name, len(device.spec.ports))
            case _Request.RECONCILE_AND_COMMIT:
                device.reconcile(config, self._tc)
            case _:
                raise P4RuntimeError(Code.UNIMPLEMENTED, f"action {action} is not supported")

    def _intern(self, message: p4r.ForwardingPipelineConfig) -> p4r.ForwardingPipelineConfig:
        """One copy of a configuration for all switches that have it."""
        digest = hashlib.sha256(message.SerializeToString(deterministic=True)).digest()
        return self._messages.setdefault(digest, message)

    async def GetForwardingPipelineConfig(
        self, request: p4r.GetForwardingPipelineConfigRequest, context: Context
    ) -> p4r.GetForwardingPipelineConfigResponse:
        """Return the pipeline configuration, or the parts that are asked for."""
        response = p4r.GetForwardingPipelineConfigResponse()
        try:
            device = self._device(request.device_id)
        except P4RuntimeError as exc:
            await context.abort(exc.code, exc.message)
            raise
        if device.config is None:
            return response
        message, wanted = device.config.message, request.response_type
        if message.HasField("cookie"):
            response.config.cookie.CopyFrom(message.cookie)
        if wanted in (request.ALL, request.P4INFO_AND_COOKIE):
            response.config.p4info.CopyFrom(message.p4info)
        if wanted in (request.ALL, request.DEVICE_CONFIG_AND_COOKIE):
            response.config.p4_device_config = message.p4_device_config
        response.config.SetInParent()
        return response

    async def Write(self, request: p4r.WriteRequest, context: Context) -> p4r.WriteResponse:
        """Do updates in order; trailing metadata tells when the maps were changed."""
        try:
            device = self._device(request.device_id)
            self._arbiters[request.device_id].check(request.role, request.election_id)
            at_once = request.atomicity == p4r.WriteRequest.DATAPLANE_ATOMIC
            atomic = at_once or request.atomicity == p4r.WriteRequest.ROLLBACK_ON_ERROR
            result = device.write(request.updates, atomic, at_once)
        except P4RuntimeError as exc:
            await context.abort(exc.code, exc.message)
            raise
        stamps = ((BEFORE_KEY, str(result.before_ns)), (AFTER_KEY, str(result.after_ns)))
        if any(result.errors):
            failed = next(e for e in result.errors if e is not None)
            text = f"Write failure: {failed.message}"
            trailing = (*stamps, (DETAILS_KEY, batch_status(result.errors, text)))
            await context.abort(Code.UNKNOWN, text, trailing_metadata=trailing)
        context.set_trailing_metadata(stamps)
        return p4r.WriteResponse()

    async def Read(self, request: p4r.ReadRequest, context: Context) -> AsyncIterator[p4r.ReadResponse]:
        """Return entries, defaults and counters."""
        response = p4r.ReadResponse()
        try:
            device = self._device(request.device_id)
            device.ready()
        except P4RuntimeError as exc:
            await context.abort(exc.code, exc.message)
            raise
        # All at once: a write between two messages would show in one half of a read only.
        errors: list[P4RuntimeError | None] = []
        full: list[p4r.ReadResponse] = []
        for wanted in request.entities:
            try:
                for entity in device.read(wanted):
                    response.entities.append(entity)
                    if len(response.entities) == _ENTITIES_PER_MESSAGE:
                        full.append(response)
                        response = p4r.ReadResponse()
                errors.append(None)
            except P4RuntimeError as exc:
                errors.append(exc)
        for message in full:
            yield message
        yield response
        failed = next((e for e in errors if e is not None), None)
        if failed is not None:
            trailing = ((DETAILS_KEY, batch_status(errors, f"Read failure: {failed.message}")),)
            await context.abort(Code.UNKNOWN, f"Read failure: {failed.message}", trailing_metadata=trailing)

    async def StreamChannel(
        self, request_iterator: AsyncIterator[p4r.StreamMessageRequest], context: Context
    ) -> AsyncIterator[p4r.StreamMessageResponse]:
        """A client's session: arbitration."""
        queue: asyncio.Queue[p4r.StreamMessageResponse | P4RuntimeError | None] = asyncio.Queue()
        session = _Session(self, Client(queue.put_nowait, queue.qsize), queue)
        reader = asyncio.ensure_future(session.read(request_iterator))
        self._sessions.add(session)
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, P4RuntimeError):
                    await context.abort(item.code, item.message)
                else:
                    yield item
        finally:
            self._sessions.discard(session)
            session.leave()
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader


class _Session:
    """One StreamChannel: reads what the client sends, and takes part in the election for it."""

    def __init__(self, server: P4RuntimeServer, client: Client, queue: asyncio.Queue[Any]) -> None:
        self._server = server
        self._client = client
        self._queue = queue
        self._arbiter: Arbiter | None = None
        self.device_id: int | None = None  # once it is known

    async def read(self, messages: AsyncIterator[p4r.StreamMessageRequest]) -> None:
        """Handle messages until the client is done, or an error ends the session."""
        try:
            async for message in messages:
                if message.HasField("arbitration"):
                    await self._server.powered(message.arbitration.device_id)
                self._handle(message)
        except P4RuntimeError as exc:
            self._queue.put_nowait(exc)
        finally:
            self._queue.put_nowait(None)

    def _handle(self, message: p4r.StreamMessageRequest) -> None:
        match message.WhichOneof("update"):
            case "arbitration":
                device_id = message.arbitration.device_id
                self._server._device(device_id)
                arbiter = self._server._arbiters[device_id]
                if self._arbiter not in (None, arbiter):
                    raise P4RuntimeError(Code.FAILED_PRECONDITION, "one stream is for one device")
                self._arbiter, self.device_id = arbiter, device_id
                arbiter.update(self._client, message.arbitration)
            case "digest_ack" if self._arbiter is not None and self._acknowledge(message.digest_ack):
                pass
            case "packet" if self._arbiter is not None:
                try:
                    self._server._packet_out(self._arbiter.device_id, self._client, message.packet)
                except P4RuntimeError as exc:
                    error = p4r.StreamError(canonical_code=number(exc.code), message=exc.message)
                    error.packet_out.packet_out.CopyFrom(message.packet)
                    self._complain(error)
            case other:
                if self._arbiter is None:
                    raise P4RuntimeError(Code.FAILED_PRECONDITION, "a stream begins with arbitration")
                error = p4r.StreamError(
                    canonical_code=Code.UNIMPLEMENTED.value[0],
                    message=f"stream message {other} is not supported by this target",
                )
                if other == "digest_ack":
                    error.canonical_code = Code.INVALID_ARGUMENT.value[0]
                    error.message = f"no digest {message.digest_ack.digest_id}"
                    error.digest_list_ack.digest_list_ack.CopyFrom(message.digest_ack)
                self._complain(error)

    def _complain(self, error: p4r.StreamError) -> None:
        """Put an error on the stream; one too many for a client that does not read them is not told."""
        if self._client.waiting() < _MESSAGES_WAITING:
            self._queue.put_nowait(p4r.StreamMessageResponse(error=error))

    def _acknowledge(self, ack: p4r.DigestListAck) -> bool:
        assert self._arbiter is not None
        device = self._server.devices[self._arbiter.device_id]
        if (
            device.config is None
            or device.running is None
            or ack.digest_id not in device.config.schema.digests
        ):
            return False
        device.running.digests.acknowledge(ack.digest_id, ack.list_id)
        return True

    def end(self) -> None:
        """End the stream from this side."""
        self._queue.put_nowait(None)

    def fail(self, error: P4RuntimeError) -> None:
        """End the stream with an error."""
        self._queue.put_nowait(error)

    def leave(self) -> None:
        """End the client's part in the election."""
        if self._arbiter is not None:
            self._arbiter.leave(self._client)
