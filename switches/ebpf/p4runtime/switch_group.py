"""All switches of a process: ports, links, queues, CPU ports, client elections, power-off and power-on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from finsy.proto import p4r

from mrclab.linux.errors import BadInputError
from mrclab.linux.link_monitor import LinkMonitor
from mrclab.linux.traffic_control import TrafficControl, ifindex_of
from mrclab.switches.ebpf.p4runtime.arbitration import Arbiter, Client
from mrclab.switches.ebpf.p4runtime.device import Device, precedence
from mrclab.switches.ebpf.p4runtime.entities.digests import digest_list
from mrclab.switches.ebpf.p4runtime.packet_io import PACKET_IN, PACKET_OUT, CpuPort
from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError
from mrclab.switches.ebpf.plan import DROP_PORT, Compiled
from mrclab.switches.ebpf.runtime.datapath import SharedMaps
from mrclab.switches.ebpf.runtime.interfaces import QdiscMonitor, drop_queue, set_queue, shapes_of
from mrclab.switches.spec import SwitchSpec

log = logging.getLogger(__name__)

_FRAMES_AT_ONCE = 64  # maximum number of frames that are read from a CPU port without a break for other work
_SCAN_S = 0.01  # time between two checks for idle entries and digests
_REST_S = 0.1  # time between two checks if no device has idle timeouts or digests


def _check_specs(specs: Sequence[SwitchSpec]) -> None:
    """Raise BadInputError if a port is invalid, or two switches share a device id or an interface."""
    ids = [s.device_id for s in specs]
    if len(set(ids)) != len(ids):
        raise BadInputError("two switches have the same device id")
    used: dict[str, str] = {}
    for spec in specs:
        for port, interface in spec.ports.items():
            if not 0 <= port < DROP_PORT:
                raise BadInputError(f"{spec.name}: port {port} is not in 0..{DROP_PORT - 1}")
            if interface in used:
                raise BadInputError(f"{spec.name}: interface {interface} is also a port of {used[interface]}")
            used[interface] = spec.name
    for spec in specs:
        cpu_port = spec.cpu_port
        if cpu_port is not None and (cpu_port in spec.ports or not 0 <= cpu_port < DROP_PORT):
            limit = DROP_PORT - 1
            raise BadInputError(f"{spec.name}: CPU port {cpu_port} is not in 0..{limit}, or a port too")


class SwitchGroup:
    """A set of switches with different device ids, in the network namespace of the constructor's caller.

    `queues` sets the rate (frames per second) and depth (frames) of queues, by (device id, port number).
    Raise BadInputError if a port is invalid, or two switches share a device id or an interface.
    """

    def __init__(
        self, specs: Sequence[SwitchSpec], queues: Mapping[tuple[int, int], tuple[int, int]]
    ) -> None:
        _check_specs(specs)
        self.tc = TrafficControl()
        self._shared = SharedMaps()
        self._links = LinkMonitor()
        self._qdiscs = QdiscMonitor()
        self._port_of: dict[int, tuple[Device, int]] = {}  # ifindex -> device and port number
        self._queues = dict(queues)
        self._cpu_ports: dict[int, CpuPort] = {}  # device id -> CPU port
        shapes = partial(shapes_of, self.tc)
        self.devices = {s.device_id: Device(self._with_cpu_port(s), self._shared, shapes) for s in specs}
        self._arbiters = {i: Arbiter(i) for i in self.devices}
        self._booted: dict[int, asyncio.Event] = {}  # id of a device that is off -> set at power-on
        self._watching: asyncio.Task[None] | None = None

    def _with_cpu_port(self, spec: SwitchSpec) -> SwitchSpec:
        """If the spec has a CPU port, create its interface. Return the spec with this port added."""
        if spec.cpu_port is None:
            return spec
        self._cpu_ports[spec.device_id] = made = CpuPort()
        return replace(spec, ports={**spec.ports, spec.cpu_port: made.name})

    def release(self, compiled: Compiled) -> None:
        """Close the shared maps of a program that no switch has loaded any more."""
        self._shared.release(compiled)

    def start(self) -> None:
        """Take over the ports; watch links, queues, CPU ports. Raise BadInputError if a port is missing."""
        # Remove the filters of a killed server first: they would still forward frames with old entries.
        for device in self.devices.values():
            for port, ifindex in device.sweep(self.tc).items():
                self._port_of[ifindex] = (device, port)
        for (device_id, port), (rate, depth) in self._queues.items():
            set_queue(self.tc, ifindex_of(self.devices[device_id].spec.ports[port]), rate, depth)
        self._links_changed()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._links, self._links_changed)
        for device_id, cpu_port in self._cpu_ports.items():
            loop.add_reader(cpu_port, self._packets_in, device_id)
        loop.add_reader(self._qdiscs, self._qdiscs_changed)
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Remove all programs, queues and CPU ports from the interfaces, and close all descriptors."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._links)
        loop.remove_reader(self._qdiscs)
        for cpu_port in self._cpu_ports.values():
            loop.remove_reader(cpu_port)
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        for device in self.devices.values():
            device.unload(self.tc)
        for device_id, port in self._queues:
            with contextlib.suppress(BadInputError):  # raised if the interface was deleted
                drop_queue(self.tc, ifindex_of(self.devices[device_id].spec.ports[port]))
        self._qdiscs.close()
        for cpu_port in self._cpu_ports.values():
            cpu_port.close()
        self._links.close()
        self._shared.close()
        self.tc.close()

    def device(self, device_id: int) -> Device:
        """Return a device. Raise P4RuntimeError if it does not exist or is powered off."""
        device = self.devices.get(device_id)
        if device is None:
            raise P4RuntimeError(Code.NOT_FOUND, f"no device {device_id}")
        device.reachable()
        return device

    def arbiter(self, device_id: int) -> Arbiter:
        """Return a device's arbiter. Raise P4RuntimeError if the device does not exist or is powered off."""
        self.device(device_id)
        return self._arbiters[device_id]

    # -- links and queues ----------------------------------------------------------------------------------

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

    # -- messages to and from clients ----------------------------------------------------------------------

    async def _watch(self) -> None:
        """Repeatedly send idle timeout notifications and digests to the primary clients."""
        while True:
            busy = False
            for device_id, device in self.devices.items():
                if device.running is not None and device.running.digests.configs:
                    busy = True
                    self._send_digests(device_id, device)
                if device.idle is None or not device.idle.needed:
                    continue
                busy = True
                self._send_idle(device_id, device.idle.expired(time.monotonic_ns()))
            await asyncio.sleep(_SCAN_S if busy else _REST_S)

    def _send_idle(self, device_id: int, entries: Sequence[p4r.TableEntry]) -> None:
        if not entries:
            return
        note = p4r.StreamMessageResponse()
        note.idle_timeout_notification.timestamp = time.time_ns()
        note.idle_timeout_notification.table_entry.extend(entries)
        for client in self._arbiters[device_id].primaries():
            client.offer(note)

    def _send_digests(self, device_id: int, device: Device) -> None:
        if device.config is None or device.running is None:
            return
        for ready in device.running.ready_digests():
            for client in self._arbiters[device_id].primaries():
                client.offer(digest_list(ready, device.config.schema, time.time_ns()))

    def acknowledge(self, device_id: int, ack: p4r.DigestListAck) -> bool:
        """Record that a client has received a list of digests. Return False for an unknown digest."""
        device = self.devices[device_id]
        if device.config is None or device.running is None:
            return False
        if ack.digest_id not in device.config.schema.digests:
            return False
        device.running.digests.acknowledge(ack.digest_id, ack.list_id)
        return True

    def _packets_in(self, device_id: int) -> None:
        """Send the frames of a switch's CPU port to the primary clients, as packet-ins.

        If MESSAGES_WAITING messages wait for a client already, frames are not sent to this client.
        """
        device, primaries = self.devices[device_id], self._arbiters[device_id].primaries()
        for frame in self._cpu_ports[device_id].frames(_FRAMES_AT_ONCE):
            if device.config is None:
                continue
            packet = device.config.schema.packet_headers[PACKET_IN].read(frame)
            for client in primaries:
                if packet is not None:
                    client.offer(p4r.StreamMessageResponse(packet=packet))

    def packet_out(self, device_id: int, client: Client, packet: p4r.PacketOut) -> None:
        """Send a packet-out: its frame enters on the switch's CPU port. Raise P4RuntimeError if it fails."""
        device = self.device(device_id)
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

    # -- power ---------------------------------------------------------------------------------------------

    def power_off(
        self, device_ids: Sequence[int], lost: Callable[[Device], None], wait_ns: int | None = None
    ) -> tuple[int, int]:
        """Power off devices after a wait. As in a power cut, the devices drop all frames and lose all state.

        `lost` is called for each device after its state is lost. Return two times of CLOCK_MONOTONIC (ns):
        before the first device and after the last device stops forwarding. Raise P4RuntimeError if a device
        does not exist or is off already.
        """
        devices = [self.device(i) for i in device_ids]
        with precedence(len(devices), wait_ns):
            before = time.monotonic_ns()
            for device in devices:
                device.silence()
            after = time.monotonic_ns()
        for device in devices:
            device.lose_power()
            device_id = device.spec.device_id
            self._booted[device_id] = asyncio.Event()
            self._arbiters[device_id] = Arbiter(device_id)
            lost(device)
            log.info("%s: switched off", device.spec.name)
        return before, after

    def power_on(self, device_ids: Sequence[int]) -> tuple[int, int]:
        """Power on devices again, without a pipeline. Return the times before and after the change.

        Raise P4RuntimeError at the first device that is not off; then the devices before it are on already.
        """
        before = time.monotonic_ns()
        for device_id in device_ids:
            device = self.devices.get(device_id)
            if device is None or device_id not in self._booted:
                raise P4RuntimeError(Code.FAILED_PRECONDITION, f"device {device_id} is not off")
            device.boot()
            self._booted.pop(device_id).set()
            log.info("%s: switched on", device.spec.name)
        return before, time.monotonic_ns()

    async def wait_for_power(self, device_id: int) -> None:
        """Wait until a device is on, so that a client gets no answer from a powered-off switch."""
        if device_id in self._booted:
            await self._booted[device_id].wait()
