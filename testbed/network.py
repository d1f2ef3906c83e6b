"""A running fabric: its namespaces and cables, and the processes in the namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mrclab.linux import namespaces
from mrclab.linux.errors import InputError
from mrclab.linux.life import signals
from mrclab.linux.namespaces import Markers
from mrclab.linux.processes import Process
from mrclab.p4src.targets import capabilities_of
from mrclab.testbed import ownership, state
from mrclab.testbed.clean import Removed, end_keepers, remove, removed_on_error
from mrclab.testbed.doctor import require_machine
from mrclab.testbed.names import RUN_VARIABLE, Names, switch_ports
from mrclab.testbed.ownership import refuse_claimed
from mrclab.testbed.state import State
from mrclab.topologies import Fabric
from mrclab.topologies.build import refusal_of_name

if TYPE_CHECKING:
    from mrclab.testbed.delays.long_wire import LongWires
    from mrclab.testbed.mininet_classes import FabricMininet

REAP_S = 5.0
MAX_RATE_BPS = 10**11


class FabricNetwork:
    """A running fabric: a namespace for each host, one namespace for all switches, and cables.

    `up` makes a new fabric, and `attached` returns a fabric that already runs. At the end of a ``with``, the
    fabric is taken down, also after an exception, Ctrl-C, SIGTERM or SIGHUP::

        with FabricNetwork.up(load_fabric("tiny")) as network:
            network.spawn("h0", ["tcpdump", "-i", "h0-eth0"])
    """

    def __init__(
        self, fabric: Fabric, names: Names, run_id: str, target: str = "", *, routers: bool = False
    ) -> None:
        self.fabric = fabric
        self.names = names
        self.places = names.places(fabric, routers=routers)
        self.run_id = run_id
        self.target = target
        self._children: list[subprocess.Popen[Any]] = []
        self._mininet: FabricMininet | None = None
        self._signals = ExitStack()
        self._watchdog: ownership.Watchdog | None = None
        self._wires: LongWires | None = None
        self.found = Removed()

    @classmethod
    def up(
        cls,
        fabric: Fabric,
        *,
        names: Names | None = None,
        run_id: str | None = None,
        target: str = "",
        routers: bool = False,
        command: str = "",
    ) -> FabricNetwork:
        """Bring a fabric up. The remains of a dead testbed are removed first and listed in ``found``.

        If ``routers``, the kernel forwards the packets, in a separate namespace for each switch. The testbed
        belongs to this process until ``detach``, and ``command`` is recorded with it. If this process is
        killed, a watchdog process removes the testbed. Raise InputError if another testbed is up, or a link
        is too fast for the kernel. Raise MachineError if the machine lacks something.
        """
        refuse_too_fast(fabric)
        refuse_long_names(fabric)
        require_machine()
        names = names or Names.from_environment()
        run_id = run_id or names.new_run_id()
        if not names.owns_run(run_id):
            raise InputError(f"run id '{run_id}' must begin with '{names.prefix}.'")
        from mrclab.testbed import links
        from mrclab.testbed.delays.long_wire import lengthen
        from mrclab.topologies import fabric_text

        with state.locked(names):
            refuse_second(names)
            found = remove(names, keep_lock=True)
            state.taken_file(names).unlink(missing_ok=True)
            owner = Process.of(os.getpid(), command or ownership.command())
            text = fabric_text(fabric)
            record = State(run_id, fabric.name, text, state.now(), target, owner, user=ownership.user())
            network = cls(fabric, names, run_id, target, routers=routers)
            network.found = found
            with signals.deferred(), ExitStack() as held, removed_on_error(names):
                network._watchdog = watchdog = ownership.Watchdog(names, run_id, owner)
                held.callback(watchdog.stop)
                state.write(names, record)
                markers = Markers(state.markers_dir(names))
                for name in names.of(fabric, routers=routers):
                    namespaces.create(name, markers)
                links.lay(fabric, names, routers=routers)
                egress = capabilities_of(target).takes_frames_first
                network._wires = lengthen(fabric, names, run_id, routers=routers, egress=egress)
                held.pop_all()
        return network

    @classmethod
    def attached(cls, names: Names | None = None) -> FabricNetwork:
        """Return the running testbed, even if another process made it. Raise InputError without a testbed."""
        names = names or Names.from_environment()
        found = state.require(names)
        return cls(found.fabric(), names, found.run_id, found.target)

    def __enter__(self) -> FabricNetwork:
        """Make SIGTERM and SIGHUP raise ``signals.Ended``, so that they also take the testbed down."""
        self._signals.enter_context(signals.as_exceptions())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.down()
        finally:
            self._signals.close()

    def down(self) -> Removed:
        """Take the testbed down: end all its processes, and remove its namespaces, cables and record.

        This method first ends the processes that keep the testbed up, such as an experiment in another
        terminal. A second call has no effect.
        """
        with signals.deferred():
            if self._mininet is not None:
                self._mininet.stop()
                self._mininet = None
            keepers = end_keepers(self.names) if self._is_current() else []
            if self._wires is not None:
                self._wires.kill()
                self._wires = None
            with state.locked(self.names):
                found = state.read(self.names)
                other = found is not None and found.run_id != self.run_id
                removed = Removed() if other else remove(self.names)
            self._stop_watchdog()
            if other:
                return removed  # a newer testbed has these names now
            for child in self._children:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(REAP_S)
            self._children.clear()
            return replace(removed, processes=(*keepers, *removed.processes))

    def _is_current(self) -> bool:
        found = state.read(self.names)
        return found is not None and found.run_id == self.run_id

    def _stop_watchdog(self) -> None:
        if self._watchdog is not None:
            self._watchdog.stop()
            self._watchdog = None

    def ended(self) -> str | None:
        """Return an error line if the process that delays the links has ended, otherwise None."""
        if self._wires is not None and self._wires.ended:
            return "the process that delays the links has ended"
        return None

    @property
    def taken(self) -> str:
        """The process that is taking this testbed from its owner, or "" if there is none."""
        return ownership.taken(self.names, self.run_id)

    def stay(self) -> None:
        """Allow other commands to use the testbed while this process runs."""
        with state.locked(self.names):
            state.write(self.names, replace(self._record(), stays=True))

    def detach(self) -> None:
        """Let the testbed run after the end of this process, until ``mrclab down``."""
        with state.locked(self.names):
            state.write(self.names, replace(self._record(), owner=None, stays=True))
        self._stop_watchdog()
        self._children.clear()

    def record_process(self, pid: int, what: str) -> None:
        """Record a process that keeps the testbed up.

        After ``detach``, the testbed counts as dead when all recorded processes have ended.
        """
        with state.locked(self.names):
            state.write(self.names, self._record().with_process(Process.of(pid, what)))

    def _record(self) -> State:
        found = state.read(self.names)
        if found is None or found.run_id != self.run_id:
            raise InputError("this testbed is not up any more")
        return found

    @property
    def environment(self) -> dict[str, str]:
        """The environment for processes of this run: the environment of this process, and MRCLAB_RUN."""
        return {**os.environ, RUN_VARIABLE: self.run_id}

    @property
    def ports(self) -> dict[str, dict[int, str]]:
        """The interfaces of the switches, by switch name and port number."""
        return switch_ports(self.fabric)

    def spawn(self, host: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process inside a host's namespace.

        ``options`` are options of Popen; for ``sysfs`` see ``spawn_in``. Raise KeyError if the host is
        unknown, FileNotFoundError if there is no such program.
        """
        return self.spawn_in(self.names.host(self.fabric.host(host).name), argv, **options)

    def spawn_in_fabric(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process in the namespace of all switches. For ``options`` and errors see ``spawn``."""
        return self.spawn_in(self.names.fabric, argv, **options)

    def spawn_in(
        self, namespace: str, argv: Sequence[str], *, sysfs: bool = False, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a process inside a namespace, without a shell or wrapper: the pid is the program's pid.

        By default the process has a new session, so that a terminal's Ctrl-C does not reach it. Its
        environment has MRCLAB_RUN. If ``sysfs`` is true, ``ip netns exec`` starts the program with the
        namespace's interfaces in /sys/class/net. BMv2, for instance, reads port states there.
        """
        options["env"] = {**(options.get("env") or os.environ), RUN_VARIABLE: self.run_id}
        options.setdefault("start_new_session", True)
        if sysfs:
            if shutil.which(argv[0], path=options["env"].get("PATH")) is None:
                raise FileNotFoundError(2, "no such program", argv[0])
            argv = ["ip", "netns", "exec", namespace, *argv]
            child = subprocess.Popen(argv, **options)
        else:
            with namespaces.inside(namespace):
                child = subprocess.Popen(argv, **options)
        self._children.append(child)
        return child

    @property
    def mininet(self) -> FabricMininet:
        """The same testbed as a Mininet object. Its shells start at their first use."""
        if self._mininet is None:
            from mrclab.testbed.mininet_classes import FabricMininet

            self._mininet = FabricMininet(self.fabric, self.names, self.run_id, self.target)
        return self._mininet


def attach(fabric: Fabric | None = None, *, names: Names | None = None) -> FabricMininet:
    """Return the running testbed as a Mininet object. Its ``stop`` ends the shells; the testbed stays up.

    Raise InputError if no testbed is up, or if the testbed's fabric is not ``fabric``.
    """
    network = FabricNetwork.attached(names)
    if fabric is not None and fabric != network.fabric:
        raise InputError(f"the testbed that is up is another one: topology {network.fabric.name}")
    return network.mininet


def refuse_second(names: Names) -> None:
    """Raise InputError if a testbed with these names is up or claimed. The caller must hold the lock."""
    found = state.read(names)
    if found is None or not found.alive(names):
        refuse_claimed(names)
        return
    if found.stays and found.user == ownership.user():
        raise InputError(
            f"a testbed is up (topology {found.topology}, since {found.since}): run 'mrclab down' first"
        )
    raise InputError(
        f"{ownership.whose(found)}: wait until it is free, or take it with 'mrclab down --force'"
    )


def refuse_too_fast(fabric: Fabric) -> None:
    """Raise InputError if a link is too fast for the rate limits of the kernel."""
    for link in fabric.links:
        if link.profile.rate_bps > MAX_RATE_BPS:
            rate = f"{link.profile.rate_bps / 1e9:g} Gbit/s"
            raise InputError(f"link {link.name} has {rate}: use --target sim, or at most 100 Gbit/s")


def refuse_long_names(fabric: Fabric) -> None:
    """Raise InputError if Linux does not accept an interface's name. The simulator accepts any name."""
    for switch in fabric.switches:
        for port in switch.ports:
            if refusal := refusal_of_name(port.ifname):
                raise InputError(f"{refusal}: use --target sim, or fewer ports")
