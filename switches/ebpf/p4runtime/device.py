"""One switch behind P4Runtime: its pipeline configuration, and writes and reads of its entities.

Not for concurrent use: the server calls it from its event loop only.
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
"""Of one entity that is written or asked for: far more than any key, and little enough to keep many of."""


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


def _check_size(entity: p4r.Entity) -> None:
    size = entity.ByteSize()
    if size > MOST_ENTITY_BYTES:
        raise P4RuntimeError(
            Code.INVALID_ARGUMENT, f"an entity of {size} bytes: this target takes {MOST_ENTITY_BYTES} at most"
        )


def _kinds(config: Config, running: Running) -> dict[str, Entities]:
    return {name: kind(config.schema, running) for name, kind in _KINDS.items()}


def precedence(changes: int, wait_ns: int | None = None) -> AbstractContextManager[None]:
    """Return the context in which so many map updates are made."""
    if wait_ns is not None:
        return at_its_moment(wait_ns, beside_agents())
    # Not for long writes, which program a switch: their time need not be known to the microsecond.
    return before_others(ABOVE_AGENTS) if changes <= FEW_CHANGES else nullcontext()


class Device:
    """A switch of a given spec, at first without a pipeline: then every frame goes to the host as before."""

    def __init__(
        self,
        spec: SwitchSpec,
        shared: SharedMaps,
        queues: Callable[[Collection[int]], Mapping[int, Shape]] = lambda _: {},
    ) -> None:
        """Keep the spec; `queues` returns the shapes of interfaces that have a queue."""
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
        """Remove what another process has left on the ports. Raise BadInputError.

        Returns the index of the interface of each port.
        """
        ifindexes = {port: ifindex_of(interface) for port, interface in self.spec.ports.items()}
        for ifindex in ifindexes.values():
            tc.remove_clsact(ifindex)
        return ifindexes

    def load(self, compiled: Compiled, tc: TrafficControl) -> None:
        """Put a program onto the ports in the place of the one before. All tables are as the program says."""
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
        """Read the shapes of the ports' queues again. A queue with a new shape starts empty."""
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
        """Make a configuration the one that forwards, with its tables as the program says."""
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

    def save(self, config: Config) -> None:
        """Load a configuration next to the one that forwards; writes and reads are for it from now on."""
        running = self._make(config.compiled)
        self._forget_saved()
        self._saved = config, running
        self._kinds = _kinds(config, running)

    def commit_saved(self, tc: TrafficControl) -> None:
        """Let the saved configuration forward, with the entities written to it. Raise P4RuntimeError."""
        if self._saved is None:
            raise P4RuntimeError(Code.NOT_FOUND, "no saved pipeline config to commit")
        config, running = self._saved
        self._saved = None
        self._put_on_ports(running, tc)
        self._adopt(config)

    def reconcile(self, config: Config, tc: TrafficControl) -> None:
        """Let a configuration forward with the entries of the one before.

        Raise P4RuntimeError INVALID_ARGUMENT when one of these does not fit, and change nothing then.
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
            carry_over(_kinds(old, self.running), _kinds(config, running), running)
        except P4RuntimeError as exc:
            running.close()
            raise P4RuntimeError(
                Code.INVALID_ARGUMENT, f"what the tables hold does not fit the new program: {exc.message}"
            ) from exc
        self._put_on_ports(running, tc)
        self._adopt(config)

    def unload(self, tc: TrafficControl) -> None:
        """Take the program off the ports and drop it."""
        self._forget_saved()
        if self.running is not None:
            self.running.datapath.detach(tc)
            self.running.close()
            self.running = None

    def silence(self) -> None:
        """Drop every received frame from now on, by one map update per port.

        The program stays attached but no longer knows its ports. Frames that are queued for sending already
        are still sent.
        """
        if self.running is not None:
            self.running.datapath.forget_ports()

    def programs(self) -> Iterator[Compiled]:
        """Yield the compiled programs that are loaded: on the ports, and saved ones."""
        for running in (self.running, self._saved[1] if self._saved else None):
            if running is not None:
                yield running.datapath.compiled

    def configs(self) -> Iterator[Config]:
        """Yield the set configurations: the one that forwards, and the saved one."""
        for config in (self.config, self._saved[0] if self._saved else None):
            if config is not None:
                yield config

    def lose_power(self) -> None:
        """Lose the pipeline with its state, and refuse requests. Call `silence` before."""
        self.on = False
        self._forget_saved()
        self.config = self.idle = None
        self._kinds = {}

    def boot(self) -> None:
        """Switch on: the switch is on its ports, but has no pipeline."""
        self.on = True

    def reachable(self) -> None:
        """Raise P4RuntimeError UNAVAILABLE while the switch is off."""
        if not self.on:
            raise P4RuntimeError(Code.UNAVAILABLE, f"{self.spec.name} is switched off")

    def ready(self) -> Running:
        """Return what writes and reads apply to. Raise P4RuntimeError if there is no config."""
        self.reachable()
        if self._saved is not None:
            return self._saved[1]
        if self.config is None or self.running is None:
            raise P4RuntimeError(
                Code.FAILED_PRECONDITION, "No forwarding pipeline config set for this device"
            )
        return self.running

    def link_changed(self, port: int, up: bool) -> None:
        """Note that a port has gained or lost its link."""
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
        """Do updates in order. All are planned first, so that the map updates come close together.

        With `atomic`, one that fails takes all others with it, which then are ABORTED. With `at_once` also no
        frame may see some of the updates and not others: raise P4RuntimeError UNIMPLEMENTED if they are more
        than the replacement of one value in the kernel. With `wait_ns` the maps are updated so long after
        everything is ready, and on a CPU for which no sender waits (`linux.scheduling.at_its_moment`).
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
            # The first call after a pause fills caches and is slower; it is not measured.
            running.touch(changes[0])
        if wait_ns is not None and not any(p.error for p in plans):
            calls = [running.prepared(c) for c in changes]
            made = make_at_a_moment(wait_ns, beside_agents(), [call.make for call in calls])
            if made.complete:
                return WriteResult([None] * len(plans), made.before_ns, made.after_ns)
            # The kernel refused one: make them again to find out which, and undo them.
        done: list[_Plan] = []
        with precedence(len(changes)):
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

    def _join(self, running: Running, plans: Sequence[_Plan]) -> None:
        """Make one change of all. The last value has everything that was planned in it."""
        changes = [c for p in plans for c in p.tx.changes]
        if len({(c.map, c.key) for c in changes}) > 1:
            self._abort(running, plans, [])
            raise P4RuntimeError(
                Code.UNIMPLEMENTED,
                f"DATAPLANE_ATOMIC: this batch comes to {len(changes)} updates of the kernel's maps, and no "
                "two of them can be made at once: use ROLLBACK_ON_ERROR, or one table that is searched",
            )
        if changes:
            for plan in plans:
                plan.tx.changes.clear()
            last = changes[-1]
            value = last.current()
            if value is not None or running.holds(
                last
            ):  # an entry that was added and removed again is no change
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
        """Make a plan's map updates. When that fails, the plans behind it are undone too, and so is it."""
        try:
            running.apply(plan.tx, undo_first=[p.tx for p in later])
        except P4RuntimeError:
            plan.tx.changes.clear()
            raise

    def _abort(self, running: Running, plans: Sequence[_Plan], done: Sequence[_Plan]) -> WriteResult:
        """Undo the planned and the finished updates."""
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
        """Yield everything that an entity asks for; unset fields are wildcards. Raise P4RuntimeError."""
        _check_size(wanted)
        kind = wanted.WhichOneof("entity")
        if kind is None:
            raise P4RuntimeError(Code.INVALID_ARGUMENT, "a read without an entity")
        return self._entities(kind, "reading").read(wanted)
