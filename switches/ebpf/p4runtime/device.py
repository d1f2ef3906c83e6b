"""One switch of the P4Runtime server: its pipeline configuration, and writes and reads of its entities.

A `Device` is not safe for concurrent use: only the server's event loop may call its methods.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from finsy.proto import p4r

from mrclab.linux.scheduling import (
    ABOVE_AGENTS,
    at_its_moment,
    before_others,
    beside_agents,
    make_at_a_moment,
)
from mrclab.linux.traffic_control import TrafficControl, ifindex_of
from mrclab.switches.ebpf.p4runtime.entities.digests import DigestEntries
from mrclab.switches.ebpf.p4runtime.entities.profiles import GroupEntries, MemberEntries
from mrclab.switches.ebpf.p4runtime.entities.replication import ReplicationEntries
from mrclab.switches.ebpf.p4runtime.entities.running import Entities, Running, carry_over
from mrclab.switches.ebpf.p4runtime.entities.stateful import (
    CounterEntries,
    DirectCounterEntries,
    DirectMeterEntries,
    MeterEntries,
    RegisterEntries,
)
from mrclab.switches.ebpf.p4runtime.entities.tables import IdleWatch, TableEntries
from mrclab.switches.ebpf.p4runtime.entities.value_sets import ValueSetEntries
from mrclab.switches.ebpf.p4runtime.schema import Schema
from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError
from mrclab.switches.ebpf.plan import Compiled, Shape
from mrclab.switches.ebpf.runtime.datapath import Datapath, SharedMaps
from mrclab.switches.ebpf.runtime.transaction import Transaction
from mrclab.switches.spec import SwitchSpec

FEW_CHANGES = 16
MOST_ENTITY_BYTES = 128 << 10
"""Size limit of an entity in a request. Any key fits, and the memory has room for many such entities."""


_KINDS: dict[str, Callable[[Schema, Running], Entities]] = {
    "table_entry": TableEntries,
    "action_profile_member": MemberEntries,
    "action_profile_group": GroupEntries,
    "counter_entry": CounterEntries,
    "direct_counter_entry": DirectCounterEntries,
    "meter_entry": MeterEntries,
    "direct_meter_entry": DirectMeterEntries,
    "register_entry": RegisterEntries,
    "packet_replication_engine_entry": ReplicationEntries,
    "digest_entry": DigestEntries,
    "value_set_entry": ValueSetEntries,
}


@dataclass(frozen=True)
class Config:
    """A pipeline configuration that a client has set: its message, its schema and its compiled program."""

    message: p4r.ForwardingPipelineConfig
    schema: Schema
    compiled: Compiled


@dataclass
class WriteResult:
    """The result of a Write: an error or None per update, and the times before and after the map updates.

    The times are CLOCK_MONOTONIC in nanoseconds. If no map was updated, both times are almost equal.
    """

    errors: list[P4RuntimeError | None]
    before_ns: int
    after_ns: int


@dataclass(eq=False)
class _Plan:
    update: p4r.Update
    tx: Transaction = field(default_factory=Transaction)
    error: P4RuntimeError | None = None


def _check_size(entity: p4r.Entity) -> None:
    size = entity.ByteSize()
    if size > MOST_ENTITY_BYTES:
        raise P4RuntimeError(
            Code.INVALID_ARGUMENT, f"an entity of {size} bytes: this target takes {MOST_ENTITY_BYTES} at most"
        )


def _kinds(config: Config, running: Running) -> dict[str, Entities]:
    return {name: kind(config.schema, running) for name, kind in _KINDS.items()}


def precedence(changes: int, wait_ns: int | None = None) -> AbstractContextManager[None]:
    """Return a context for `changes` map updates.

    In the context, this thread has priority if `wait_ns` is given or `changes` is at most FEW_CHANGES.
    """
    if wait_ns is not None:
        return at_its_moment(wait_ns, beside_agents())
    # More than FEW_CHANGES updates program a whole switch. Their time is not measured, so it may be longer.
    return before_others(ABOVE_AGENTS) if changes <= FEW_CHANGES else nullcontext()


class Device:
    """A switch. Without a pipeline it forwards no frames: the host's kernel receives the ports' frames."""

    def __init__(
        self,
        spec: SwitchSpec,
        shared: SharedMaps,
        queues: Callable[[Collection[int]], Mapping[int, Shape]] = lambda _: {},
    ) -> None:
        """Make a switch without a pipeline. `queues` returns the parameters of the interfaces' queues."""
        self.spec = spec
        self._queues = queues
        self.config: Config | None = None
        self.running: Running | None = None
        self.idle: IdleWatch | None = None
        self._saved: tuple[Config, Running] | None = None
        self._kinds: dict[str, Entities] = {}
        self._shared = shared
        self._down: set[int] = set()
        self.on = True

    # -- pipeline ------------------------------------------------------------------------------------------

    def sweep(self, tc: TrafficControl) -> dict[int, int]:
        """Remove filters that another process has left on the ports. Return the ifindex of each port.

        Raise BadInputError if an interface does not exist.
        """
        ifindexes = {port: ifindex_of(interface) for port, interface in self.spec.ports.items()}
        for ifindex in ifindexes.values():
            tc.remove_clsact(ifindex)
        return ifindexes

    def load(self, compiled: Compiled, tc: TrafficControl) -> None:
        """Replace the program on the ports. Tables begin with entries and defaults of the P4 source."""
        self._put_on_ports(self._make(compiled), tc)

    def _make(self, compiled: Compiled) -> Running:
        datapath = Datapath(self.spec.name, compiled, self.spec.ports, self._shared)
        try:
            self._set_queues(datapath)
            return Running(compiled, datapath, lambda port: port not in self._down)
        except BaseException:
            datapath.close_descriptors()
            raise

    def _set_queues(self, datapath: Datapath) -> None:
        if datapath.compiled.plan.queue_map is not None:
            shapes = self._queues(datapath.ifindexes.values())
            for port, ifindex in datapath.ifindexes.items():
                datapath.set_queue(port, shapes.get(ifindex))

    def queues_changed(self) -> None:
        """Read the parameters of the ports' queues again. A queue whose parameters change starts empty."""
        for running in (self.running, self._saved[1] if self._saved else None):
            if running is not None:
                self._set_queues(running.datapath)

    def _put_on_ports(self, running: Running, tc: TrafficControl) -> None:
        try:
            running.datapath.attach(tc, replace=self.running is not None)
        except BaseException:
            running.close()
            raise
        if self.running is not None:
            self.running.close()
        self.running = running

    def commit(self, config: Config, tc: TrafficControl) -> None:
        """Start to forward with a configuration. The tables begin with only the entries of the P4 source."""
        self.load(config.compiled, tc)
        self._adopt(config)

    def _adopt(self, config: Config) -> None:
        assert self.running is not None
        self._forget_saved()
        self.config = config
        self._kinds = _kinds(config, self.running)
        self.idle = IdleWatch(config.schema, self.running)
        by_name = {layout.name: number for number, layout in config.compiled.plan.digests.items()}
        self.running.digest_numbers = {by_name[n]: i for i, n in config.schema.digest_names.items()}

    def _forget_saved(self) -> None:
        if self._saved is not None:
            self._saved[1].close()
            self._saved = None

    def verify(self, config: Config) -> None:
        """Load a configuration into the kernel and drop it again. Raise the same errors as a commit."""
        self._make(config.compiled).close()

    def save(self, config: Config) -> None:
        """Load a configuration but do not forward with it. From now on writes and reads apply to it."""
        running = self._make(config.compiled)
        self._forget_saved()
        self._saved = config, running
        self._kinds = _kinds(config, running)

    def commit_saved(self, tc: TrafficControl) -> None:
        """Forward with the saved configuration and its entities. Raise P4RuntimeError if nothing is saved."""
        if self._saved is None:
            raise P4RuntimeError(Code.NOT_FOUND, "no saved pipeline config to commit")
        config, running = self._saved
        self._saved = None
        self._put_on_ports(running, tc)
        self._adopt(config)

    def reconcile(self, config: Config, tc: TrafficControl) -> None:
        """Start to forward with a configuration, and keep the entries of the previous configuration.

        If an entry does not fit the new program, change nothing and raise P4RuntimeError INVALID_ARGUMENT.
        """
        old = self.config
        if old is None or self.running is None:
            self.commit(config, tc)
            return
        if old.compiled is config.compiled and old.message.p4info == config.message.p4info:
            self._adopt(config)
            return
        running = self._make(config.compiled)
        try:
            carry_over(_kinds(old, self.running), _kinds(config, running), self.running, running)
        except P4RuntimeError as exc:
            running.close()
            raise P4RuntimeError(
                Code.INVALID_ARGUMENT, f"what the tables hold does not fit the new program: {exc.message}"
            ) from exc
        self._put_on_ports(running, tc)
        self._adopt(config)

    def unload(self, tc: TrafficControl) -> None:
        """Remove the program from the ports and close it."""
        self._forget_saved()
        if self.running is not None:
            self.running.datapath.detach(tc)
            self.running.close()
            self.running = None

    def silence(self) -> None:
        """Drop every received frame from now on, by one map update per port.

        The program stays attached, but all ports are removed from the program's port map. Frames that wait in
        a queue already are still sent.
        """
        if self.running is not None:
            self.running.datapath.forget_ports()

    def programs(self) -> Iterator[Compiled]:
        """Yield the loaded programs: the program on the ports, and the program of a saved configuration."""
        for running in (self.running, self._saved[1] if self._saved else None):
            if running is not None:
                yield running.datapath.compiled

    def configs(self) -> Iterator[Config]:
        """Yield the forwarding configuration and the saved configuration, if they exist."""
        for config in (self.config, self._saved[0] if self._saved else None):
            if config is not None:
                yield config

    def lose_power(self) -> None:
        """Power off: delete the pipeline with its state, and reject requests. Call `silence` first."""
        self.on = False
        self._forget_saved()
        self.config = self.idle = None
        self._kinds = {}

    def boot(self) -> None:
        """Power on again, without a pipeline."""
        self.on = True

    def reachable(self) -> None:
        """Raise P4RuntimeError UNAVAILABLE if the switch is powered off."""
        if not self.on:
            raise P4RuntimeError(Code.UNAVAILABLE, f"{self.spec.name} is switched off")

    def ready(self) -> Running:
        """Return the program to which writes and reads apply. Raise P4RuntimeError if there is none."""
        self.reachable()
        if self._saved is not None:
            return self._saved[1]
        if self.config is None or self.running is None:
            raise P4RuntimeError(
                Code.FAILED_PRECONDITION, "No forwarding pipeline config set for this device"
            )
        return self.running

    def link_changed(self, port: int, up: bool) -> None:
        """Record whether the link of a port is up now."""
        if (port not in self._down) == up:
            return
        if up:
            self._down.discard(port)
        else:
            self._down.add(port)
        for running in (self.running, self._saved[1] if self._saved else None):
            if running is not None:
                running.link_changed(port)

    # -- writing -------------------------------------------------------------------------------------------

    def write(
        self,
        updates: Sequence[p4r.Update],
        atomic: bool = False,
        at_once: bool = False,
        wait_ns: int | None = None,
    ) -> WriteResult:
        """Prepare all updates, then make the map updates in order, in as little time as possible.

        If `atomic` is true and an update fails, undo all updates; the others get the error ABORTED. If
        `at_once` is true, no frame may see only a part of the updates. So raise P4RuntimeError UNIMPLEMENTED
        if the updates change more than one map value. If `wait_ns` is given, wait for this time before the
        map updates, on a CPU without senders (`linux.scheduling.at_its_moment`).
        """
        running = self.ready()
        plans = [_Plan(u) for u in updates]
        self._plan(plans)
        if atomic and any(p.error for p in plans):
            return self._abort(running, plans, [])
        if at_once:
            self._join(running, plans)
        changes = [c for p in plans for c in p.tx.changes]
        if changes:
            # The first access to a map after a long time is slow. Access it now, before the measured part.
            running.touch(changes[0])
        deletes = any(p.update.type == p4r.Update.DELETE for p in plans)
        if wait_ns is not None and not any(p.error for p in plans):
            calls = [running.prepared(c) for c in changes]
            made = make_at_a_moment(wait_ns, beside_agents(), [call.make for call in calls])
            if made.complete:
                for plan in plans if deletes else ():
                    plan.tx.start_counters()
                return WriteResult([None] * len(plans), made.before_ns, made.after_ns)
            # A map update failed in the kernel. Make all updates again, one by one, to find the failed one.
        done: list[_Plan] = []
        with precedence(len(changes)):
            before = time.monotonic_ns()
            for i, plan in enumerate(plans):
                if plan.error is not None:
                    continue
                if deletes:
                    plan.tx.start_counters()
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

    def _join(self, running: Running, plans: Sequence[_Plan]) -> None:
        """Replace the map updates of all plans by one map update that makes all planned changes.

        A single update keeps its unseen map updates. In a batch, the cell of a new entry may have been that
        of an entry which the batch deletes, and which frames still hit. So there, nothing is unseen.
        """
        changes = [c for p in plans for c in p.tx.changes]
        seen = {(c.map, c.key) for c in changes if not c.unseen or len(plans) > 1}
        count = len(seen) + sum(p.tx.cells for p in plans)
        if count > 1:
            self._abort(running, plans, [])
            raise P4RuntimeError(
                Code.UNIMPLEMENTED,
                f"DATAPLANE_ATOMIC: this batch comes to {count} updates of the kernel's maps, and no "
                "two of them can be made at once: use ROLLBACK_ON_ERROR, or one table that is searched",
            )
        if changes and len(plans) > 1:
            for plan in plans:
                plan.tx.changes.clear()
            last = changes[-1]
            value = last.current()
            # If an entry was added and removed again, there is nothing to change.
            if value is not None or running.holds(last):
                plans[-1].tx.change(last.map, last.key, value, last.current)

    def _plan(self, plans: Sequence[_Plan]) -> None:
        for plan in plans:
            plan.tx, plan.error = Transaction(), None
            try:
                _check_size(plan.update.entity)
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
        """Make a plan's map updates. If an update fails, cancel the plans in `later` and undo this plan."""
        try:
            running.apply(plan.tx, undo_first=[p.tx for p in later])
        except P4RuntimeError:
            plan.tx.changes.clear()
            raise

    def _abort(self, running: Running, plans: Sequence[_Plan], done: Sequence[_Plan]) -> WriteResult:
        """Cancel the updates that are only planned, and undo the finished updates."""
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

    def read(self, wanted: p4r.Entity) -> Iterator[p4r.Entity]:
        """Yield the entities that match a request. An unset field of the request matches every value.

        Raise P4RuntimeError for a bad request.
        """
        _check_size(wanted)
        kind = wanted.WhichOneof("entity")
        if kind is None:
            raise P4RuntimeError(Code.INVALID_ARGUMENT, "a read without an entity")
        return self._entities(kind, "reading").read(wanted)
