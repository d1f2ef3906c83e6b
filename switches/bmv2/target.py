"""The reference target: one simple_switch_grpc process per switch."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from switches.errors import BadInputError, SwitchError
from switches.processes import Process, environment, first_to_end, inside, python, stop_all
from switches.target import NETNS_DIR, RunningSwitch, SwitchSpec

BMV2_PROGRAM = "simple_switch_grpc"
START_TIMEOUT_S = 60.0
_CLONE_NEWNET = 0x40000000


@contextlib.contextmanager
def _in_netns(netns: str | None) -> Iterator[None]:
    """Let this thread be in another network namespace for a moment."""
    if netns is None:
        yield
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as home, open(NETNS_DIR / netns) as there:
        if libc.setns(there.fileno(), _CLONE_NEWNET):
            code = ctypes.get_errno()
            raise SwitchError(f"cannot enter network namespace {netns}: {os.strerror(code)}")
        try:
            yield
        finally:
            libc.setns(home.fileno(), _CLONE_NEWNET)


def free_ports(count: int, netns: str | None) -> list[int]:
    """TCP ports that nothing listens on in the namespace, all different."""
    with contextlib.ExitStack() as held, _in_netns(netns):
        ports = []
        for _ in range(count):
            s = held.enter_context(socket.socket())
            s.bind(("127.0.0.1", 0))
            ports.append(int(s.getsockname()[1]))
        return ports


class Bmv2Target:
    """Runs each switch in a simple_switch_grpc of its own, all started at the same time."""

    name = "bmv2"

    def __init__(self) -> None:
        self._processes: list[Process] = []
        self._sockets: tempfile.TemporaryDirectory[str] | None = None

    def available(self) -> str | None:
        """Why the target cannot run here; None when it can."""
        if shutil.which(BMV2_PROGRAM) is None:
            return f"{BMV2_PROGRAM} is not on PATH: install BMv2, or use --target ebpf"
        if os.geteuid() != 0:
            return "the bmv2 target needs root: start it with sudo"
        return None

    def start(
        self, specs: Sequence[SwitchSpec], *, netns: str | None = None, log_dir: Path
    ) -> list[RunningSwitch]:
        """Start the switches; see `SwitchTarget`."""
        if self._processes:
            raise BadInputError("this target has been started already")
        options = subprocess.run([BMV2_PROGRAM, "--help"], capture_output=True, text=True, check=False).stdout
        self._sockets = sockets = tempfile.TemporaryDirectory(prefix="bmv2-")
        ports = free_ports(2 * len(specs), netns)
        running = []
        try:
            for spec, grpc_port, thrift_port in zip(specs, ports[0::2], ports[1::2], strict=True):
                address = f"127.0.0.1:{grpc_port}"
                command = [BMV2_PROGRAM, "--no-p4", "--device-id", str(spec.device_id)]
                command += ["--log-console", "--log-level", "warn"]
                if "--thrift-port" in options:
                    command += ["--thrift-port", str(thrift_port)]
                if "--notifications-addr" in options:  # its default name is one for the whole machine
                    command += ["--notifications-addr", f"ipc://{sockets.name}/{spec.device_id}.ipc"]
                for port, interface in spec.ports.items():
                    command += ["-i", f"{port}@{interface}"]
                command += ["--", "--grpc-server-addr", address]
                log = log_dir / f"{spec.name}.log"
                self._processes.append(Process(inside(netns, command), log))
                running.append(RunningSwitch(spec.name, spec.device_id, address))
            self._wait(running, netns)
        except BaseException:
            self.stop()
            raise
        return running

    def _wait(self, running: Sequence[RunningSwitch], netns: str | None) -> None:
        addresses = [r.grpc_address for r in running]
        command = inside(netns, python("switches.readiness", str(START_TIMEOUT_S), *addresses))
        probe = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment()
        )
        try:
            ended = first_to_end([probe.pid, *(p.pid for p in self._processes)], START_TIMEOUT_S)
            for switch, process in zip(running, self._processes, strict=True):
                if process.pid == ended:
                    process.exit_code(START_TIMEOUT_S)
                    raise SwitchError(f"{switch.name}: {BMV2_PROGRAM} ended: {process.last_words()}")
            _, said = probe.communicate(timeout=START_TIMEOUT_S)
            if probe.returncode:
                raise SwitchError(said.strip().splitlines()[-1])
        finally:
            if probe.poll() is None:
                probe.kill()
                probe.communicate()

    def alive(self) -> bool:
        """Whether every process runs."""
        return bool(self._processes) and all(p.alive() for p in self._processes)

    def pids(self) -> list[int]:
        """The process ids."""
        return [p.pid for p in self._processes]

    def stop(self) -> None:
        """End every process."""
        stop_all(self._processes)
        self._processes = []
        if self._sockets is not None:
            self._sockets.cleanup()
            self._sockets = None
