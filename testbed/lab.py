"""A running fabric with programmed switches. Experiments and ``mrclab up`` use it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from mrclab.controller.fabric import ControllerThread
from mrclab.controller.fault_tables import FaultTables
from mrclab.controller.pipeline import Pipeline
from mrclab.controller.queues import MIN_QUEUE_FRAMES, QUEUE_NS
from mrclab.linux import namespaces
from mrclab.linux.life import signals
from mrclab.linux.system import environment
from mrclab.p4src.targets import Capabilities
from mrclab.switches.spec import Queue, RunningSwitch, SwitchSpec
from mrclab.switches.target import SwitchTarget, select_target
from mrclab.testbed.faults import lab_faults
from mrclab.testbed.names import RUN_VARIABLE, Names, switch_ports
from mrclab.testbed.network import FabricNetwork
from mrclab.testbed.running import Say
from mrclab.topologies import Fabric

PROGRAM_TIMEOUT_S = 120.0
FRAME_HEADER_BYTES = 14


class Lab:
    """Network, switches, controller and faults of one fabric. Leaving the ``with`` takes everything down.

    `Lab.up` creates a Lab. Until ``down``, the calling thread is in the switches' namespace: P4Runtime
    listens on the loopback there. gRPC's threads stay in the namespace in which they were started.
    """

    def __init__(
        self,
        network: FabricNetwork,
        target: SwitchTarget,
        switches: Sequence[RunningSwitch],
        controller: ControllerThread,
        held: ExitStack,
        pipeline: Pipeline | None = None,
    ) -> None:
        """Store the running parts. Closing ``held`` takes these parts down."""
        self.network = network
        self.fabric: Fabric = network.fabric
        self.target = target
        self.switches = tuple(switches)
        self.controller = controller
        self.fault_tables = FaultTables(self.fabric, switches, controller.election_ids, pipeline)
        self.faults = lab_faults(self.fabric, network.names, target, self.fault_tables, self.revive)
        self._held = held
        held.callback(self.fault_tables.close)
        held.callback(self.faults.close)

    @classmethod
    def up(
        cls,
        fabric: Fabric,
        target_name: str,
        log_dir: Path,
        *,
        names: Names | None = None,
        say: Say = lambda _: None,
        command: str = "",
        pipeline: Pipeline | None = None,
    ) -> Lab:
        """Start everything, and wait until the entries of every switch were written and read back.

        ``say`` is called with a line for each step. ``command`` is recorded as the owner of the testbed.
        ``pipeline`` replaces the shipped switch program. Raise the errors of FabricNetwork.up and
        select_target, SwitchError if a switch's process ends, and ProgrammingError if a switch rejects its
        entries. After an error, everything is taken down. Call ``down`` in the thread that called ``up``:
        ``down`` makes this thread leave the switches' namespace.
        """
        target = select_target(target_name)
        started = time.monotonic()
        with ExitStack() as held:
            network = held.enter_context(
                FabricNetwork.up(fabric, names=names, target=target.name, command=command)
            )
            if network.found:
                say(f"what a testbed had left: {network.found}")
            # The target's processes get the run id in their environment, so that clean-up finds them.
            held.enter_context(environment({RUN_VARIABLE: network.run_id}))
            say(f"{len(fabric.links)} links, {len(fabric.hosts)} hosts ({_since(started)})")
            held.enter_context(namespaces.inside(network.names.fabric))
            held.callback(target.stop)
            specs = [SwitchSpec(s.name, s.device_id, switch_ports(fabric)[s.name]) for s in fabric.switches]
            switches = target.start(specs, netns=network.names.fabric, log_dir=log_dir)
            target.shape(_queues(fabric))
            for pid in target.pids():
                network.record_process(pid, f"{target.name} switches")
            say(f"{len(switches)} switches on {target.name} ({_since(started)})")
            controller = ControllerThread(fabric, switches, pipeline, ended=target.ended)
            held.callback(controller.stop)
            controller.start()
            controller.programmed(timeout_s=PROGRAM_TIMEOUT_S)
            say(f"programmed and read back ({_since(started)})")
            return cls(network, target, switches, controller, held.pop_all(), pipeline)

    @property
    def target_name(self) -> str:
        """The name of the target that runs the switches."""
        return self.target.name

    @property
    def capabilities(self) -> Capabilities:
        """The properties of the switches' target."""
        return self.target.capabilities

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def ended(self) -> str | None:
        """Return in one line how a process of the switches has ended; None while all of them run."""
        return self.target.ended() or self.network.ended()

    def revive(self, *switches: str) -> None:
        """Start ended switches again, and wait until they have their table entries.

        Faults that were written to these switches are lost. Raise SwitchError if a switch does not start, and
        ProgrammingError if it does not accept its entries.
        """
        programmed = self.controller.programmings
        known = set(self.target.pids())
        self.target.restart(*switches)
        for pid in set(self.target.pids()) - known:
            self.network.record_process(pid, f"{self.target.name} switches")
        for name in switches:
            times = programmed.get(name, 0) + 1
            self.controller.programmed_again(name, times=times, timeout_s=PROGRAM_TIMEOUT_S)

    def down(self) -> None:
        """Take everything down. A second call has no effect. Signals wait until this call ends."""
        with signals.deferred():
            self._held.close()


def _queues(fabric: Fabric) -> dict[str, dict[int, Queue]]:
    """Return the queue of each switch port: its rate in full frames a second, and its length in frames."""
    queues: dict[str, dict[int, Queue]] = {s.name: {} for s in fabric.switches}
    for link in fabric.links:
        frame_bits = 8 * (link.profile.mtu_bytes + FRAME_HEADER_BYTES)
        rate = max(1, link.profile.rate_bps // frame_bits)
        queue = Queue(rate, max(MIN_QUEUE_FRAMES, rate * QUEUE_NS // 10**9))
        for end in (link.a, link.b):
            if end.node in queues:
                queues[end.node][end.port] = queue
    return queues


def _since(started: float) -> str:
    return f"{time.monotonic() - started:.1f} s"
