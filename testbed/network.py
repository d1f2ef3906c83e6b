"""The running emulation: namespaces, cables, and the processes in them."""

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
    """A fabric that is up: every host in a separate namespace, all switches in one, cables between them.

    Made by ``up`` (new) or ``attached`` (already running). As a context manager it goes down at the end of
    the ``with``, also on an exception, Ctrl-C, SIGTERM or SIGHUP::

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
        """Bring a fabric up. The remains of a dead testbed are removed first, and named in ``found``.

        With ``routers`` every switch has a separate namespace, in which the kernel routes.

        It belongs to this process until ``detach``, and to the ``command`` that it carries out (as started):
        should this process be killed, a watchdog removes the testbed. Raise InputError if another testbed is
        up or a link is faster than the kernel shapes, MachineError if the machine lacks something.
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
        """Return the testbed that is up, from any process. Raise InputError if no testbed is up."""
        names = names or Names.from_environment()
        found = state.require(names)
        return cls(found.fabric(), names, found.run_id, found.target)

    def __enter__(self) -> FabricNetwork:
        """Make SIGTERM and SIGHUP raise ``signals.Ended``, so that they too take the testbed down."""
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
        """Take the testbed down: every process in it and of its run, namespaces, cables, record.

        A process that keeps it, such as an experiment in another terminal, is ended first.
        A second call does nothing.
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
                return removed  # ours is gone and another has been brought up since
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
        """Return a line if the process behind the links' delays has ended, else None."""
        if self._wires is not None and self._wires.ended:
            return "the process that delays the links has ended"
        return None

    @property
    def taken(self) -> str:
        """By whom this testbed is being taken down, or nothing where nobody but its owner does."""
        return ownership.taken(self.names, self.run_id)

    def stay(self) -> None:
        """Offer the testbed to other commands from now on, for as long as this process runs."""
        with state.locked(self.names):
            state.write(self.names, replace(self._record(), stays=True))

    def detach(self) -> None:
        """Leave the testbed running after this process ends, until ``mrclab down``."""
        with state.locked(self.names):
            state.write(self.names, replace(self._record(), owner=None, stays=True))
        self._stop_watchdog()
        self._children.clear()

    def record_process(self, pid: int, what: str) -> None:
        """Record a process that keeps the testbed up: a detached one counts as dead when all of those
        have ended."""
        with state.locked(self.names):
            state.write(self.names, self._record().with_process(Process.of(pid, what)))

    def _record(self) -> State:
        found = state.read(self.names)
        if found is None or found.run_id != self.run_id:
            raise InputError("this testbed is not up any more")
        return found

    @property
    def environment(self) -> dict[str, str]:
        """The environment for processes of this run: the caller's and MRCLAB_RUN."""
        return {**os.environ, RUN_VARIABLE: self.run_id}

    @property
    def ports(self) -> dict[str, dict[int, str]]:
        """Every switch's ports: switch -> {port number: interface}."""
        return switch_ports(self.fabric)

    def spawn(self, host: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process inside a host's namespace; ``options`` are Popen's, and ``sysfs`` as in
        ``spawn_in``.

        Raise KeyError on an unknown host, FileNotFoundError if there is no such program.
        """
        return self.spawn_in(self.names.host(self.fabric.host(host).name), argv, **options)

    def spawn_in_fabric(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process inside the namespace of all switches, as ``spawn`` does."""
        return self.spawn_in(self.names.fabric, argv, **options)

    def spawn_in(
        self, namespace: str, argv: Sequence[str], *, sysfs: bool = False, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a process inside a namespace: no shell and no wrapper, so the pid is the process's own.

        It gets a new session (a terminal's Ctrl-C does not reach it) and MRCLAB_RUN in its
        environment, unless ``options`` say otherwise. With ``sysfs`` its /sys/class/net shows the
        namespace's interfaces, for programs that look there (BMv2 does for port states); ``ip netns exec``
        sees to that and then becomes the process.
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
        """The same testbed as a Mininet object. Its shells start when they are used."""
        if self._mininet is None:
            from mrclab.testbed.mininet_classes import FabricMininet

            self._mininet = FabricMininet(self.fabric, self.names, self.run_id, self.target)
        return self._mininet


def attach(fabric: Fabric | None = None, *, names: Names | None = None) -> FabricMininet:
    """Mininet over the testbed that is up, from any process; ``stop`` it to end its shells, the testbed
    stays.

    Raise InputError if no testbed is up, or one with another fabric than the given one.
    """
    network = FabricNetwork.attached(names)
    if fabric is not None and fabric != network.fabric:
        raise InputError(f"the testbed that is up is another one: topology {network.fabric.name}")
    return network.mininet


def refuse_second(names: Names) -> None:
    """Raise InputError if a testbed of these names is up or held; the caller holds its lock."""
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
    """Raise InputError if a link is faster than anything that the kernel shapes can be."""
    for link in fabric.links:
        if link.profile.rate_bps > MAX_RATE_BPS:
            rate = f"{link.profile.rate_bps / 1e9:g} Gbit/s"
            raise InputError(f"link {link.name} has {rate}: use --target sim, or at most 100 Gbit/s")


def refuse_long_names(fabric: Fabric) -> None:
    """Raise InputError if Linux does not take the name of an interface. Virtual time takes any name."""
    for switch in fabric.switches:
        for port in switch.ports:
            if refusal := refusal_of_name(port.ifname):
                raise InputError(f"{refusal}: use --target sim, or fewer ports")
