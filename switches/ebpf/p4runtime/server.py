"""The P4Runtime service for all switches of a process, on one loopback address.

A session is one call of StreamChannel by a client: arbitration, packet-outs, and digest acknowledgements.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import grpc
import grpc.aio
from finsy.proto import p4r, p4r_grpc

from mrclab.linux.errors import BadInputError, MachineError, SwitchError
from mrclab.switches.ebpf.p4runtime.arbitration import Arbiter, Client
from mrclab.switches.ebpf.p4runtime.device import Config, Device
from mrclab.switches.ebpf.p4runtime.programs import Programs, json_of
from mrclab.switches.ebpf.p4runtime.schema import bind
from mrclab.switches.ebpf.p4runtime.status import (
    DETAILS_KEY,
    MOST_CHARACTERS,
    Code,
    P4RuntimeError,
    batch_status,
    number,
)
from mrclab.switches.ebpf.p4runtime.switch_group import SwitchGroup
from mrclab.switches.ebpf.runtime.power import power_handlers
from mrclab.switches.spec import WAIT_KEY, SwitchSpec


class Session:
    """One StreamChannel call: it handles the client's messages and registers the client for elections.

    `queue` holds the messages to the client. An error or None in the queue ends the stream.
    """

    def __init__(self, switches: SwitchGroup) -> None:
        self.queue: asyncio.Queue[p4r.StreamMessageResponse | P4RuntimeError | None] = asyncio.Queue()
        self._switches = switches
        self._client = Client(self.queue.put_nowait, self.queue.qsize)
        self._arbiter: Arbiter | None = None

    @property
    def device_id(self) -> int | None:
        """The device id of the stream, or None before the first arbitration message."""
        return None if self._arbiter is None else self._arbiter.device_id

    async def read(self, messages: AsyncIterator[p4r.StreamMessageRequest]) -> None:
        """Handle messages until the client closes the stream or an error ends the session."""
        try:
            async for message in messages:
                if message.HasField("arbitration"):
                    await self._switches.wait_for_power(message.arbitration.device_id)
                self.handle(message)
        except P4RuntimeError as exc:
            self.fail(exc)
        finally:
            self.end()

    def handle(self, message: p4r.StreamMessageRequest) -> None:
        """Handle one message. Raise P4RuntimeError if an error in it must end the session."""
        kind = message.WhichOneof("update")
        if kind == "arbitration":
            self._arbitrate(message.arbitration)
        elif self._arbiter is None:
            raise P4RuntimeError(Code.FAILED_PRECONDITION, "a stream begins with arbitration")
        elif kind == "packet":
            self._packet_out(self._arbiter.device_id, message.packet)
        elif kind == "digest_ack":
            self._acknowledge(self._arbiter.device_id, message.digest_ack)
        else:
            text = f"stream message {kind} is not supported by this target"
            self._report(p4r.StreamError(canonical_code=number(Code.UNIMPLEMENTED), message=text))

    def _arbitrate(self, message: p4r.MasterArbitrationUpdate) -> None:
        arbiter = self._switches.arbiter(message.device_id)
        if self._arbiter not in (None, arbiter):
            raise P4RuntimeError(Code.FAILED_PRECONDITION, "one stream is for one device")
        self._arbiter = arbiter
        arbiter.update(self._client, message)

    def _packet_out(self, device_id: int, packet: p4r.PacketOut) -> None:
        try:
            self._switches.packet_out(device_id, self._client, packet)
        except P4RuntimeError as exc:
            error = p4r.StreamError(canonical_code=number(exc.code), message=exc.message)
            error.packet_out.packet_out.CopyFrom(packet)
            self._report(error)

    def _acknowledge(self, device_id: int, ack: p4r.DigestListAck) -> None:
        if not self._switches.acknowledge(device_id, ack):
            text = f"no digest {ack.digest_id}"
            error = p4r.StreamError(canonical_code=number(Code.INVALID_ARGUMENT), message=text)
            error.digest_list_ack.digest_list_ack.CopyFrom(ack)
            self._report(error)

    def _report(self, error: p4r.StreamError) -> None:
        """Send an error to the client. Drop the error if MESSAGES_WAITING messages wait already."""
        self._client.offer(p4r.StreamMessageResponse(error=error))

    def end(self) -> None:
        """End the stream without an error."""
        self.queue.put_nowait(None)

    def fail(self, error: P4RuntimeError) -> None:
        """End the stream with an error."""
        self.queue.put_nowait(error)

    def leave(self) -> None:
        """Remove the client from its election."""
        if self._arbiter is not None:
            self._arbiter.leave(self._client)


# ruff: noqa: N802 (the methods have the names of the remote procedures)


log = logging.getLogger(__name__)

API_VERSION = "1.4.1"
BEFORE_KEY = "mrclab-t-before-ns"
AFTER_KEY = "mrclab-t-after-ns"
MOST_WAIT_NS = 10_000_000
"""Longest wait that a client may request: during the wait, the server handles no other request."""
_MESSAGE_LIMIT = 64 << 20
_ENTITIES_PER_MESSAGE = 512

_Request = p4r.SetForwardingPipelineConfigRequest
Context = Any  # a grpc.aio.ServicerContext; the type stubs lack its type arguments


def wait_of(metadata: Iterable[tuple[str, str | bytes]]) -> int | None:
    """Return the wait (ns) in a call's metadata, or None. Raise P4RuntimeError if it is invalid."""
    text = dict(metadata).get(WAIT_KEY)
    if text is None:
        return None
    if not text.isdigit() or int(text) > MOST_WAIT_NS:
        raise P4RuntimeError(Code.INVALID_ARGUMENT, f"{WAIT_KEY} must be from 0 to {MOST_WAIT_NS}")
    return int(text)


class P4RuntimeServer(p4r_grpc.P4RuntimeServicer):
    """Serve P4Runtime for a set of switches with different device ids.

    Create the server in the network namespace of the interfaces. Use it as an asynchronous context manager,
    or call `start` and `stop`. Raise BadInputError if `SwitchGroup` does.
    """

    def __init__(
        self,
        specs: Sequence[SwitchSpec],
        address: str,
        queues: Mapping[tuple[int, int], tuple[int, int]] = MappingProxyType({}),
    ) -> None:
        """Create the switches; for `queues` see `SwitchGroup`."""
        self.address = address
        self.port = 0
        self._switches = SwitchGroup(specs, queues)
        self._locks = {s.device_id: asyncio.Lock() for s in specs}
        self._programs = Programs()
        self._messages: dict[bytes, p4r.ForwardingPipelineConfig] = {}
        self._sessions: set[Session] = set()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Start to listen and set `port`. Raise BadInputError if the address cannot be bound."""
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
        self._switches.start()
        await self._server.start()

    async def stop(self) -> None:
        """Stop listening, and remove all programs, queues and CPU ports from the interfaces."""
        for session in self._sessions:
            session.end()
        if self._server is not None:
            await self._server.stop(grace=0.2)
            self._server = None
        await self._switches.stop()

    async def __aenter__(self) -> P4RuntimeServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def load_json(self, device_id: int, data: bytes) -> None:
        """Run a program until a client sets a pipeline. simple_switch_grpc does so with its JSON argument."""
        compiled = await self._programs.get(data)
        self._switches.devices[device_id].load(compiled, self._switches.tc)

    # -- power ---------------------------------------------------------------------------------------------

    async def _power_off(self, device_ids: Sequence[int], context: Context) -> tuple[int, int]:
        try:
            wait_ns = wait_of(context.invocation_metadata())
            return self._switches.power_off(device_ids, self._end_sessions, wait_ns)
        except P4RuntimeError as exc:
            await context.abort(exc.code, exc.message)
            raise

    def _end_sessions(self, device: Device) -> None:
        for session in [s for s in self._sessions if s.device_id == device.spec.device_id]:
            session.fail(P4RuntimeError(Code.UNAVAILABLE, f"{device.spec.name} was switched off"))

    async def _power_on(self, device_ids: Sequence[int], context: Context) -> tuple[int, int]:
        try:
            return self._switches.power_on(device_ids)
        except P4RuntimeError as exc:
            await context.abort(exc.code, exc.message)
            raise

    # -- remote procedures ---------------------------------------------------------------------------------

    async def Capabilities(
        self, request: p4r.CapabilitiesRequest, context: Context
    ) -> p4r.CapabilitiesResponse:
        """Return the version of the P4Runtime API."""
        try:
            if request.device_id:
                self._switches.device(request.device_id)
        except P4RuntimeError as exc:
            await context.abort(exc.code, exc.message)
        return p4r.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    async def SetForwardingPipelineConfig(
        self, request: _Request, context: Context
    ) -> p4r.SetForwardingPipelineConfigResponse:
        """Verify, save or commit a pipeline configuration (specification, section 14.1)."""
        try:
            device = self._switches.device(request.device_id)
            self._switches.arbiter(request.device_id).check(request.role, request.election_id)
            async with self._locks[request.device_id]:
                try:
                    await self._set_pipeline(device, request)
                finally:
                    self._release()
        except P4RuntimeError as exc:
            await context.abort(exc.code, exc.message)
        except (SwitchError, MachineError) as exc:
            log.warning("%s", exc)
            code = Code.INVALID_ARGUMENT if isinstance(exc, BadInputError) else Code.INTERNAL
            await context.abort(code, str(exc)[:MOST_CHARACTERS])
        except OSError as exc:  # a map is too large for the kernel, or there are too many maps
            log.warning("the kernel does not take the program: %s", exc)
            text = f"the kernel does not take the program: {exc.strerror}"
            await context.abort(Code.RESOURCE_EXHAUSTED, text)
        return p4r.SetForwardingPipelineConfigResponse()

    async def _set_pipeline(self, device: Device, request: _Request) -> None:
        action = request.action
        if action == _Request.COMMIT:
            if request.HasField("config"):
                raise P4RuntimeError(Code.INVALID_ARGUMENT, "COMMIT takes no pipeline config")
            device.commit_saved(self._switches.tc)
            return
        if action == _Request.UNSPECIFIED:
            raise P4RuntimeError(Code.INVALID_ARGUMENT, "an action is needed")
        if not request.HasField("config"):
            raise P4RuntimeError(Code.INVALID_ARGUMENT, "a pipeline config is needed")
        compiled = await self._programs.get(json_of(request.config.p4_device_config))
        # For a large P4Info both calls are slow. In threads they do not block other clients.
        digest = await asyncio.to_thread(_digest, request.config)
        schema = await asyncio.to_thread(bind, request.config.p4info, compiled)
        device.reachable()  # the device may have been powered off during the `await`
        config = Config(self._messages.setdefault(digest, request.config), schema, compiled)
        match action:
            case _Request.VERIFY:
                device.verify(config)
            case _Request.VERIFY_AND_SAVE:
                device.save(config)
            case _Request.VERIFY_AND_COMMIT:
                device.commit(config, self._switches.tc)
                log.info("%s: pipeline set on %d ports", device.spec.name, len(device.spec.ports))
            case _Request.RECONCILE_AND_COMMIT:
                device.reconcile(config, self._switches.tc)
            case _:
                raise P4RuntimeError(Code.UNIMPLEMENTED, f"action {action} is not supported")

    def _release(self) -> None:
        """Drop the programs and configurations that no switch uses any more."""
        devices = self._switches.devices.values()
        for compiled in self._programs.release([c for device in devices for c in device.programs()]):
            self._switches.release(compiled)
        kept = {id(config.message) for device in devices for config in device.configs()}
        self._messages = {digest: m for digest, m in self._messages.items() if id(m) in kept}

    async def GetForwardingPipelineConfig(
        self, request: p4r.GetForwardingPipelineConfigRequest, context: Context
    ) -> p4r.GetForwardingPipelineConfigResponse:
        """Return the pipeline configuration, or the requested parts of it."""
        response = p4r.GetForwardingPipelineConfigResponse()
        try:
            device = self._switches.device(request.device_id)
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
        """Execute updates in order. Return the times before and after the map updates as trailing metadata.

        With `WAIT_KEY` a client can request a wait before the map updates.
        """
        try:
            wait_ns = wait_of(context.invocation_metadata())
            device = self._switches.device(request.device_id)
            self._switches.arbiter(request.device_id).check(request.role, request.election_id)
            at_once = request.atomicity == p4r.WriteRequest.DATAPLANE_ATOMIC
            atomic = at_once or request.atomicity == p4r.WriteRequest.ROLLBACK_ON_ERROR
            result = device.write(request.updates, atomic, at_once, wait_ns)
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
        """Return entries, defaults and counters, in the order of the request's entities.

        The server computes the whole answer for an entity without a break, so no write changes the entries in
        this time. After each answer, the server handles other requests. Only one answer is in memory at once.
        """
        try:
            device = self._switches.device(request.device_id)
            device.ready()
        except P4RuntimeError as exc:
            await context.abort(exc.code, exc.message)
            raise
        errors: list[P4RuntimeError | None] = []
        response = p4r.ReadResponse()
        for wanted in request.entities:
            full: list[p4r.ReadResponse] = []
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
            await asyncio.sleep(0)
        yield response
        failed = next((e for e in errors if e is not None), None)
        if failed is not None:
            trailing = ((DETAILS_KEY, batch_status(errors, f"Read failure: {failed.message}")),)
            await context.abort(Code.UNKNOWN, f"Read failure: {failed.message}", trailing_metadata=trailing)

    async def StreamChannel(
        self, request_iterator: AsyncIterator[p4r.StreamMessageRequest], context: Context
    ) -> AsyncIterator[p4r.StreamMessageResponse]:
        """Serve a client's stream until the client or the server ends it."""
        session = Session(self._switches)
        reader = asyncio.ensure_future(session.read(request_iterator))
        self._sessions.add(session)
        try:
            while (item := await session.queue.get()) is not None:
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


def _digest(message: p4r.ForwardingPipelineConfig) -> bytes:
    """Return the hash of a configuration. Equal configurations have equal hashes."""
    return hashlib.sha256(message.SerializeToString(deterministic=True)).digest()
