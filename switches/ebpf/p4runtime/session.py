"""A client's StreamChannel: arbitration, packet-outs and acknowledgements of digests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from finsy.proto import p4r

from mrclab.switches.ebpf.p4runtime.arbitration import Arbiter, Client
from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError, number
from mrclab.switches.ebpf.p4runtime.switch_group import MESSAGES_WAITING, SwitchGroup


class Session:
    """One StreamChannel: handles the client's messages, and takes part in elections for it.

    `queue` holds the messages to the client; an error or None in it ends the stream.
    """

    def __init__(self, switches: SwitchGroup) -> None:
        self.queue: asyncio.Queue[p4r.StreamMessageResponse | P4RuntimeError | None] = asyncio.Queue()
        self._switches = switches
        self._client = Client(self.queue.put_nowait, self.queue.qsize)
        self._arbiter: Arbiter | None = None

    @property
    def device_id(self) -> int | None:
        """The device of the stream, None before the first arbitration."""
        return None if self._arbiter is None else self._arbiter.device_id

    async def read(self, messages: AsyncIterator[p4r.StreamMessageRequest]) -> None:
        """Handle messages until the client is done or an error ends the session."""
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
        """Handle one message. Raise P4RuntimeError for one that ends the session."""
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
        """Send an error; it is lost where too many messages wait for the client already."""
        if self._client.waiting() < MESSAGES_WAITING:
            self.queue.put_nowait(p4r.StreamMessageResponse(error=error))

    def end(self) -> None:
        """End the stream from this side."""
        self.queue.put_nowait(None)

    def fail(self, error: P4RuntimeError) -> None:
        """End the stream with an error."""
        self.queue.put_nowait(error)

    def leave(self) -> None:
        """End the client's part in the election."""
        if self._arbiter is not None:
            self._arbiter.leave(self._client)
