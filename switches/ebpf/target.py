"""The target `ebpf` for the testbed: it starts and stops one process that runs all switches."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc

from mrclab.linux.errors import BadInputError, MachineError, SwitchError
from mrclab.linux.processes import Child, environment, inside, python
from mrclab.linux.scheduling import chosen_wait_ns
from mrclab.p4src.targets import CAPABILITIES
from mrclab.switches.ebpf.main import READY
from mrclab.switches.ebpf.runtime.power import switch_power
from mrclab.switches.spec import Queue, RunningSwitch, SwitchSpec

START_TIMEOUT_S = 60.0


class EbpfTarget:
    """Run all switches in one `simple_switch_ebpf --fabric` process."""

    name = "ebpf"
    capabilities = CAPABILITIES["ebpf"]

    def __init__(self, rng: random.Random | None = None) -> None:
        """Make a target without switches. ``rng`` draws the random wait of `kill`."""
        self._rng = rng or random.Random()
        self._process: Child | None = None
        self._device_ids: dict[str, int] = {}
        self._address = ""
        self._channel: grpc.Channel | None = None

    def available(self) -> str | None:
        """Return why the target cannot run on this machine, or None if it can."""
        done = subprocess.run(
            python("mrclab.switches.ebpf.probe"),
            capture_output=True,
            text=True,
            env=environment(),
            check=False,
        )
        return (
            None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["the probe failed"])[-1]
        )

    def start(
        self, specs: Sequence[SwitchSpec], *, netns: str | None = None, log_dir: Path
    ) -> list[RunningSwitch]:
        """Start the switches; see `SwitchTarget`."""
        if self._process is not None:
            raise BadInputError("this target has been started already")
        log_dir.mkdir(parents=True, exist_ok=True)
        fabric = log_dir / "switches.json"
        fabric.write_text(
            json.dumps(
                [
                    {
                        "name": s.name,
                        "device_id": s.device_id,
                        "ports": {str(p): i for p, i in s.ports.items()},
                        "cpu_port": s.cpu_port,
                    }
                    for s in specs
                ]
            )
        )
        command = python(
            "mrclab.switches.ebpf.main", "--fabric", str(fabric), "--", "--grpc-server-addr", "127.0.0.1:0"
        )
        process = Child(inside(netns, command), log_dir / "switches.log", pipe_stdout=True)
        self._process = process
        try:
            line = process.read_line(START_TIMEOUT_S)
        except SwitchError:
            self.stop()
            raise
        if line is None or not line.startswith(READY):
            code, words = process.exit_code(START_TIMEOUT_S), process.last_words()
            kind = {2: BadInputError, 3: MachineError}.get(code)
            if kind is None:
                words = f"the switch server {process.why_ended()} while it started"
            self.stop()
            raise (kind or SwitchError)(words.removeprefix("simple_switch_ebpf: "))
        self._address = line.split()[1]
        self._device_ids = {s.name: s.device_id for s in specs}
        return [RunningSwitch(s.name, s.device_id, self._address) for s in specs]

    def kill(self, *names: str) -> tuple[int, int]:
        """Power off switches in one call; see `SwitchTarget`.

        Between the two returned times, the server makes only map updates.
        """
        return self._power(names, on=False)

    def restart(self, *names: str) -> None:
        """Power on switches again; see `SwitchTarget`."""
        self._power(names, on=True)

    def _power(self, names: Sequence[str], *, on: bool) -> tuple[int, int]:
        if self._channel is None:  # gRPC connects in the namespace of the thread that creates a channel
            self._channel = grpc.insecure_channel(self._address)
        try:
            wait_ns = None if on else chosen_wait_ns(self._rng)
            ids = [self._device_ids[name] for name in names]
            return switch_power(self._channel, ids, on=on, wait_ns=wait_ns)
        except grpc.RpcError as error:
            what = "switched on" if on else "switched off"
            raise SwitchError(f"{', '.join(names)} cannot be {what}: {_details(error)}") from None

    def alive(self) -> bool:
        """Return True if the process runs."""
        return self._process is not None and self._process.alive()

    def ended(self) -> str | None:
        """Return how the process ended, or None if it still runs."""
        if self._process is None or self._process.alive():
            return None
        return f"the switch server (process {self._process.pid}) {self._process.why_ended()}"

    def pids(self) -> list[int]:
        """Return the id of the process, in a list. The list is empty if no process was started."""
        return [] if self._process is None else [self._process.pid]

    def shape(self, queues: Mapping[str, Mapping[int, Queue]]) -> bool:
        """Return False and set nothing: here frames wait in the kernel's queues of the links."""
        return False

    def processes(self) -> dict[str, int]:
        """Return the id of the process that runs all switches. The key is `server PID`."""
        return {f"server {pid}": pid for pid in self.pids()}

    def last_words(self, name: str) -> str:
        """Return how the process ended."""
        return "" if self._process is None else self._process.why_ended()

    def stop(self) -> None:
        """End the process. Before it exits, it removes its BPF programs from the interfaces."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.stop()
            self._process = None


def _details(error: grpc.RpcError) -> str:
    return str(error.details() if isinstance(error, grpc.Call) else error)
