"""One switch behind P4Runtime: its pipeline configuration, and writes and reads of what it holds.

Not for concurrent use: the server calls it from its event loop only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from finsy.proto import p4r

from switches.ebpf.changes import Transaction
from switches.ebpf.compiled import Compiled
from switches.ebpf.datapath import Datapath, SharedMaps
from switches.ebpf.p4rt.counter_entries import CounterEntries, DirectCounterEntries
from switches.ebpf.p4rt.profile_entries import GroupEntries, MemberEntries
from switches.ebpf.p4rt.register_entries import RegisterEntries
from switches.ebpf.p4rt.running import Running
from switches.ebpf.p4rt.schema import Schema
from switches.ebpf.p4rt.status import Code, P4RuntimeError
from switches.ebpf.p4rt.table_entries import TableEntries
from switches.ebpf.p4rt.uninterrupted import uninterrupted
from switches.ebpf.tc import TrafficControl, ifindex_of
from switches.target import SwitchSpec

FEW_CHANGES = 16


class Entities(Protocol):
    """Writes and reads entities of one kind."""

    def write(self, update: p4r.Update, tx: Transaction) -> None:
        """Plan an update. Raises P4RuntimeError."""

    def read(self, entity: p4r.Entity) -> Iterator[p4r.Entity]:
        """Everything that an entity asks for; what it leaves out is a wildcard. Raises P4RuntimeError."""


_KINDS: dict[str, Callable[[Schema, Running], Entities]] = {
    "table_entry": TableEntries,
    "action_profile_member": MemberEntries,
    "action_profile_group": GroupEntries,
    "counter_entry": CounterEntries,
    "direct_counter_entry": DirectCounterEntries,
    "register_entry": RegisterEntries,
}


@dataclass(frozen=True)
class Config:
    """A pipeline configuration as it was set."""

    message: p4r.ForwardingPipelineConfig
    schema: Schema
    compiled: Compiled


@dataclass
class WriteResult:
    """What became of a Write: an error or None per update, and when maps were changed.

    The two stamps are CLOCK_MONOTONIC in nanoseconds, right before the first and right after the last map
    update; without any, they are the same moment.
    """

    errors: list[P4RuntimeError | None]
    before_ns: int
    after_ns: int


@dataclass(eq=False)
class _Plan:
    update: p4r.Update
    tx: Transaction = field(default_factory=Transaction)
    error: P4RuntimeError | None = None


class Device:
    """A switch of a given spec, at first without a pipeline: then every frame goes to the host as before."""

    def __init__(self, spec: SwitchSpec, shared: SharedMaps) -> None:
        self.spec = spec
        self.config: Config | None = None
        self.saved: Config | None = None
        self.running: Running | None = None
        self._kinds: dict[str, Entities] = {}
        self._shared = shared
        self._down: set[int] = set()
        self.on = True

    # -- pipeline ------------------------------------------------------------------------------------------

    def sweep(self, tc: TrafficControl) -> dict[int, int]:
        """Take whatever was left on the ports by another process off them. Raises BadInputError.

        Returns the index of the interface of each port.
        """
        ifindexes = {port: ifindex_of(interface) for port, interface in self.spec.ports.items()}
        for ifindex in ifindexes.values():
            tc.remove_clsact(ifindex)
        return ifindexes

    def load(self, compiled: Compiled, tc: TrafficControl) -> None:
        """Put a program onto the ports in the place of the one before. All tables are as the program says."""
        datapath = Datapath(self.spec.name, compiled, self.spec.ports, self._shared)
        try:
            running = Running(compiled, datapath, lambda port: port not in self._down)
            datapath.attach(tc, replace=self.running is not None)
        except BaseException:
            datapath.close_descriptors()
            raise
        if self.running is not None:
            self.running.datapath.close_descriptors()
        self.running = running

    def commit(self, config: Config, tc: TrafficControl) -> None:
        """Make a configuration the one that forwards."""
        self.load(config.compiled, tc)
        self.adopt(config)

    def adopt(self, config: Config) -> None:
        """Make a configuration that of the program which runs already."""
        assert self.running is not None
        self.config = config
        self._kinds = {name: kind(config.schema, self.running) for name, kind in _KINDS.items()}

    def unload(self, tc: TrafficControl) -> None:
        """Take the program off the ports and forget it."""
        if self.running is not None:
            self.running.datapath.detach(tc)
            self.running.datapath.close_descriptors()
            self.running = None

    def silence(self) -> None:
        """Drop every frame that comes in on any port, from now on: what it takes is one map update a port.

        The program stays on the ports and no longer knows them. Frames that the kernel holds for a port to
        send already are not called back: at most what its queue held.
        """
        if self.running is not None:
            self.running.datapath.forget_ports()

    def lose_power(self) -> None:
        """Forget the pipeline and all that was in it, and answer nobody. `silence` comes first."""
        self.on = False
        self.config = self.saved = None
        self._kinds = {}

    def boot(self) -> None:
        """Come back as a switch that was just started: on its ports, but without a pipeline."""
        self.on = True

    def reachable(self) -> None:
        """Raises P4RuntimeError UNAVAILABLE while the switch is off."""
        if not self.on:
            raise P4RuntimeError(Code.UNAVAILABLE, f"{self.spec.name} is switched off")

    def ready(self) -> Running:
        """What runs. Raises P4RuntimeError FAILED_PRECONDITION without a configuration."""
        self.reachable()
        if self.config is None or self.running is None:
            raise P4RuntimeError(
                Code.FAILED_PRECONDITION, "No forwarding pipeline config set for this device"
            )
        return self.running

    def link_changed(self, port: int, up: bool) -> None:
        """Take into account that a port has got or lost its link."""
        if (port not in self._down) == up:
            return
        if up:
            self._down.discard(port)
        else:
            self._down.add(port)
        if self.running is not None:
            self.running.link_changed(port)

    # -- writing -------------------------------------------------------------------------------------------

    def write(self, updates: Sequence[p4r.Update], atomic: bool = False) -> WriteResult:
        """Do updates in order. All are planned first, so that the map updates come close together.

        With `atomic`, one that fails takes all others with it, which then are ABORTED.
        """
        running = self.ready()
        plans = [_Plan(u) for u in updates]
        self._plan(plans)
        if atomic and any(p.error for p in plans):
            return self._abort(running, plans, [])
        changes = [c for p in plans for c in p.tx.changes]
        if changes:
            # The first call after a pause is slower by the caches it has to fill; that one is not measured.
            running.touch(changes[0])
        done: list[_Plan] = []
        # Not for long writes: those program a switch, and no one asks for their moment to the microsecond.
        with uninterrupted() if len(changes) <= FEW_CHANGES else nullcontext():
            before = time.monotonic_ns()
            for i, plan in enumerate(plans):
                if plan.error is not None:
                    continue
                try:
                    self._apply(running, plan, plans[i + 1 :])
                except P4RuntimeError as exc:
                    plan.error = exc
                    if atomic:
                        return self._abort(running, plans, done)
                    self._plan(plans[i + 1 :])
                done.append(plan)
            after = time.monotonic_ns()
        return WriteResult([p.error for p in plans], before, after)

    def _plan(self, plans: Sequence[_Plan]) -> None:
        for plan in plans:
            plan.tx, plan.error = Transaction(), None
            try:
                kind = plan.update.entity.WhichOneof("entity")
                if kind is None:
                    raise P4RuntimeError(Code.INVALID_ARGUMENT, "an update without an entity")
                self._entities(kind, "writing").write(plan.update, plan.tx)
            except P4RuntimeError as exc:
                plan.error = exc
                plan.tx.undo()
                plan.tx.changes.clear()

    @staticmethod
    def _apply(running: Running, plan: _Plan, later: Sequence[_Plan]) -> None:
        """Make a plan's map updates. When that fails, the plans behind it are undone too, and so is it."""
        try:
            running.apply(plan.tx, undo_first=[p.tx for p in later])
        except P4RuntimeError:
            plan.tx.changes.clear()
            raise

    def _abort(self, running: Running, plans: Sequence[_Plan], done: Sequence[_Plan]) -> WriteResult:
        """Take back what was planned and what was done."""
        for plan in reversed(plans):
            if plan not in done:
                plan.tx.undo()
        for plan in reversed(done):
            running.revert(plan.tx)
        now = time.monotonic_ns()
        aborted = P4RuntimeError(Code.ABORTED, "another update of this batch failed")
        return WriteResult([p.error or aborted for p in plans], now, now)

    def _entities(self, kind: str, doing: str) -> Entities:
        if kind not in self._kinds:
            raise P4RuntimeError(Code.UNIMPLEMENTED, f"{doing} {kind} is not supported by this target")
        return self._kinds[kind]

    # -- reading -------------------------------------------------------------------------------------------

    def read(self, entities: Sequence[p4r.Entity]) -> Iterator[p4r.Entity]:
        """Everything that the given entities ask for; what they leave out is a wildcard."""
        self.ready()
        for wanted in entities:
            kind = wanted.WhichOneof("entity")
            if kind is None:
                raise P4RuntimeError(Code.INVALID_ARGUMENT, "a read without an entity")
            yield from self._entities(kind, "reading").read(wanted)
