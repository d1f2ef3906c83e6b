"""The reference target: one simple_switch_grpc process (BMv2) per switch.

BMv2 is a separate program, not part of this project. P4Runtime cannot set the rate and the depth of queues,
so this module calls BMv2's Thrift server, without a Thrift library. In Thrift's binary protocol a call is a
header (version and type, "service:method", sequence number), arguments (type, id, value), and a zero byte.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from mrclab.linux import namespaces
from mrclab.linux.errors import BadInputError, MachineError, SwitchError
from mrclab.linux.process_watch import wait_exiting
from mrclab.linux.processes import Child, environment, first_to_end, inside, python, stop_all
from mrclab.linux.system import is_root
from mrclab.p4src.contract import PRIORITY_CONTROL
from mrclab.p4src.targets import BMV2_PROGRAM, CAPABILITIES
from mrclab.switches.spec import Queue, RunningSwitch, SwitchSpec

_CALL, _REPLY = 0x80010001, 0x80010002
_I32, _I64, _STOP = 8, 10, 0


class ThriftError(RuntimeError):
    """The switch returned an error for a Thrift call, or its reply is not valid Thrift."""


def set_queue_depth(connection: socket.socket, port: int, packets: int) -> None:
    """Set the depth of a port's queue, in packets. Raise ThriftError or OSError."""
    _call(connection, "set_egress_queue_depth", struct.pack("!BhiBhi", _I32, 1, port, _I32, 2, packets))


def set_queue_rate(connection: socket.socket, port: int, packets_per_s: int) -> None:
    """Set the rate at which packets leave a port's queue. Raise ThriftError or OSError."""
    _call(connection, "set_egress_queue_rate", struct.pack("!BhiBhq", _I32, 1, port, _I64, 2, packets_per_s))


def _call(connection: socket.socket, method: str, arguments: bytes) -> None:
    name = f"simple_switch:{method}".encode()
    header = struct.pack("!Ii", _CALL, len(name)) + name + struct.pack("!i", 0)
    connection.sendall(header + arguments + bytes([_STOP]))
    kind, length = struct.unpack("!Ii", _take(connection, 8))
    if kind != _REPLY or not 0 <= length < 256:
        raise ThriftError(f"no reply to {method} (message type {kind:#x})")
    _take(connection, length + 4)
    field, _number, status = struct.unpack("!Bhi", _take(connection, 7))
    if field != _I32 or status != 0:
        raise ThriftError(f"{method} was refused ({status})")
    _take(connection, 1)


def _take(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ThriftError("the connection ended in the middle of an answer")
        data += part
    return data


START_TIMEOUT_S = 60.0
THRIFT_TIMEOUT_S = 10.0
PRIORITIES = PRIORITY_CONTROL + 1  # queues per port: BMv2 drops a frame whose priority has no queue
DEATH_TIMEOUT_S = 5.0
# If this environment variable names a directory, BMv2 writes each port's frames there as pcap files (slow).
PCAP_VARIABLE = "MRCLAB_BMV2_PCAP"


def _in_netns(netns: str | None) -> AbstractContextManager[None]:
    """Return a context that moves this thread into a network namespace. For None, do not move the thread."""
    return contextlib.nullcontext() if netns is None else namespaces.inside(netns)


def free_ports(count: int, netns: str | None) -> list[int]:
    """Return different free TCP ports: nothing listens on them in the network namespace."""
    with contextlib.ExitStack() as held, _in_netns(netns):
        ports = []
        for _ in range(count):
            s = held.enter_context(socket.socket())
            s.bind(("127.0.0.1", 0))
            ports.append(int(s.getsockname()[1]))
        return ports


def _require_interfaces(specs: Sequence[SwitchSpec], netns: str | None) -> None:
    """Raise BadInputError if an interface is missing. BMv2 may report this only after it started."""
    with _in_netns(netns):
        there = {name for _, name in socket.if_nameindex()}
    for spec in specs:
        for interface in spec.ports.values():
            if interface not in there:
                raise BadInputError(f"{spec.name}: no interface {interface} in this network namespace")


def require_bmv2() -> None:
    """Raise MachineError if BMv2 is not installed."""
    if shutil.which(BMV2_PROGRAM) is None:
        raise MachineError(f"{BMV2_PROGRAM} is not on PATH", "install BMv2, or use --target ebpf")


def _pcap_directory(override: str) -> Path:
    """Return the directory for pcap files. Create it if it is missing: otherwise BMv2 would terminate."""
    directory = Path(override).resolve()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInputError(f"{PCAP_VARIABLE}: cannot use '{override}': {error.strerror}") from None
    return directory


class Bmv2Target:
    """Run each switch as a separate simple_switch_grpc process. All processes start at the same time."""

    name = "bmv2"
    capabilities = CAPABILITIES["bmv2"]

    def __init__(self) -> None:
        self._processes: dict[str, Child] = {}
        self._killed: set[str] = set()
        self._commands: dict[str, list[str]] = {}
        self._running: dict[str, RunningSwitch] = {}
        self._thrift_ports: dict[str, int] = {}
        self._queues: Mapping[str, Mapping[int, Queue]] = {}
        self._netns: str | None = None
        self._log_dir = Path()

    def available(self) -> str | None:
        """Return why the target cannot run on this machine, or None if it can."""
        try:
            require_bmv2()
        except MachineError as error:
            return str(error)
        if not is_root():
            return "the bmv2 target needs root: start it with sudo"
        return None

    def start(
        self, specs: Sequence[SwitchSpec], *, netns: str | None = None, log_dir: Path
    ) -> list[RunningSwitch]:
        """Start the switches; see `SwitchTarget`."""
        if self._processes:
            raise BadInputError("this target has been started already")
        require_bmv2()
        _require_interfaces(specs, netns)
        options = subprocess.run([BMV2_PROGRAM, "--help"], capture_output=True, text=True, check=False).stdout
        self._netns, self._log_dir = netns, log_dir
        ports = free_ports(2 * len(specs), netns)
        running = []
        try:
            for spec, grpc_port, thrift_port in zip(specs, ports[0::2], ports[1::2], strict=True):
                address = f"127.0.0.1:{grpc_port}"
                command = [BMV2_PROGRAM, "--no-p4", "--device-id", str(spec.device_id)]
                command += ["--log-console", "--log-level", "warn"]
                if "--thrift-port" in options:
                    command += ["--thrift-port", str(thrift_port)]
                    self._thrift_ports[spec.name] = thrift_port
                if PCAP_VARIABLE in os.environ:
                    command += [f"--pcap={_pcap_directory(os.environ[PCAP_VARIABLE])}"]
                for port, interface in spec.ports.items():
                    command += ["-i", f"{port}@{interface}"]
                command += ["--", "--grpc-server-addr", address, "--priority-queues", str(PRIORITIES)]
                if spec.cpu_port is not None:
                    command += ["--cpu-port", str(spec.cpu_port)]
                self._commands[spec.name] = inside(netns, command)
                running.append(RunningSwitch(spec.name, spec.device_id, address))
            self._running = {switch.name: switch for switch in running}
            for switch in running:
                self._spawn(switch.name)
            self._wait(running)
        except BaseException:
            self.stop()
            raise
        return running

    def _spawn(self, name: str) -> None:
        self._processes[name] = Child(self._commands[name], self._log_dir / f"{name}.log")

    def _wait(self, running: Sequence[RunningSwitch]) -> None:
        addresses = [r.grpc_address for r in running]
        command = inside(self._netns, python("mrclab.switches.readiness", str(START_TIMEOUT_S), *addresses))
        probe = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment()
        )
        try:
            watched = [self._processes[r.name] for r in running]
            ended = first_to_end([probe.pid, *(p.pid for p in watched)], START_TIMEOUT_S)
            for switch, process in zip(running, watched, strict=True):
                if process.pid == ended:
                    process.exit_code(START_TIMEOUT_S)
                    raise SwitchError(f"{switch.name}: {BMV2_PROGRAM} {process.why_ended()} while it started")
            _, said = probe.communicate(timeout=START_TIMEOUT_S)
            if probe.returncode:
                raise SwitchError((said.strip().splitlines() or ["the switches do not answer"])[-1])
        finally:
            if probe.poll() is None:
                probe.kill()
                probe.communicate()

    def shape(self, queues: Mapping[str, Mapping[int, Queue]]) -> bool:
        """Set the rate and the depth of queues, which are given by switch and port number.

        If this BMv2 was built without Thrift, return False and change nothing. Raise SwitchError if
        a switch returns an error.
        """
        self._queues = queues
        for name in self._thrift_ports:
            self._shape(name)
        return bool(self._thrift_ports)

    def _shape(self, name: str) -> None:
        try:
            with _in_netns(self._netns):
                address = ("127.0.0.1", self._thrift_ports[name])
                connection = socket.create_connection(address, THRIFT_TIMEOUT_S)
            with connection:
                for port, queue in self._queues.get(name, {}).items():
                    set_queue_depth(connection, port, queue.depth_packets)
                    set_queue_rate(connection, port, queue.rate_pps)
        except (OSError, ThriftError) as error:
            raise SwitchError(self.ended() or f"{name}: its queues cannot be set: {error}") from error

    def kill(self, *names: str) -> tuple[int, int]:
        """Kill switches; see `SwitchTarget`."""
        pids = {name: self._processes[name].pid for name in names}
        self._killed.update(names)
        before = time.monotonic_ns()
        for pid in pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for name, pid in pids.items():
            if not wait_exiting(pid, DEATH_TIMEOUT_S):
                raise SwitchError(f"{name} goes on {DEATH_TIMEOUT_S:g} s after it was killed")
        return before, time.monotonic_ns()

    def restart(self, *names: str) -> None:
        """Start ended switches again; see `SwitchTarget`. Each switch is a new process with a new pid."""
        for name in names:
            self._processes[name].stop()
            self._spawn(name)
            self._killed.discard(name)
        self._wait([self._running[name] for name in names])
        for name in names:
            if name in self._thrift_ports:
                self._shape(name)

    def last_words(self, name: str) -> str:
        """Wait for a switch's process to end; return how it ended, and the last line of its log."""
        return self._processes[name].why_ended(DEATH_TIMEOUT_S)

    def processes(self) -> dict[str, int]:
        """Return the process ids by switch."""
        return {name: process.pid for name, process in self._processes.items()}

    def alive(self) -> bool:
        """Return True if every process is running."""
        return bool(self._processes) and all(p.alive() for p in self._processes.values())

    def ended(self) -> str | None:
        """If a process has ended, but not by `kill`, return how it ended; otherwise return None."""
        for name, process in self._processes.items():
            if name not in self._killed and not process.alive():
                return f"the switch {name} (process {process.pid}) {process.why_ended(DEATH_TIMEOUT_S)}"
        return None

    def pids(self) -> list[int]:
        """Return the process ids."""
        return [p.pid for p in self._processes.values()]

    def stop(self) -> None:
        """End every process."""
        stop_all(self._processes.values())
        self._processes = {}
