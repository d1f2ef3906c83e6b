"""The course of a repetition, live and in virtual time: its faults, the order of actions, its evidence.

Live and virtual runs differ in the clock, the waiting, the routes and the workload. `World` is the interface
to these parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from mrclab.experiments.measure.evidence import Collected, Evidence, RouteChange
from mrclab.experiments.run.fault_run import (
    Deaths,
    FaultRun,
    Marks,
    Pace,
    Paths,
    SequenceSource,
    SwitchWatch,
    TimedSource,
)
from mrclab.experiments.run.injection import Change, Injector, ProfileSource
from mrclab.experiments.run.link_bytes import LinkMeter
from mrclab.experiments.spec.fault_schedule import (
    PlannedFault,
    faults_met,
    random_faults,
    schedule,
    trials_of,
)
from mrclab.experiments.spec.faults import BUSIEST, RandomFaults, SequentialFaults, TimedFault
from mrclab.experiments.spec.model import Scenario
from mrclab.experiments.spec.placement import Placement
from mrclab.experiments.spec.workloads import AGENT_KINDS
from mrclab.hosts.transports.table import Transport
from mrclab.topologies import Fabric

LONGEST_WAIT_NS = 10**9
MOST_LATE_NS = 50_000_000  # if a fault is late by more than this, the run is not the requested run


class Workload(Paths, Protocol):
    """The part of a workload's interface that a course uses."""

    @property
    def over(self) -> bool:
        """Return True when the workload is done, or when an error was found."""


class Routes(Protocol):
    """The interface of routes that react to faults."""

    @property
    def next_ns(self) -> int | None:
        """Return when the next change of routes is due, or None."""

    def act(self, now_ns: int) -> None:
        """Make the changes of routes that are due."""


class World(Protocol):
    """A live or a simulated fabric with a workload on it. All times are times of `clock`, in ns."""

    @property
    def workload(self) -> Workload:
        """Return the workload that runs in this world."""

    @property
    def routes(self) -> Routes:
        """Return the routes of the fabric, which may react to faults."""

    @property
    def marks(self) -> Marks:
        """Return the recorder of the machine's load."""

    @property
    def deaths(self) -> SwitchWatch | None:
        """Return the object that notices switches that end by themselves; None in virtual time."""

    @property
    def pace(self) -> Pace | None:
        """Return the object that adapts the workload's rate; None if the rate is fixed."""

    @property
    def change_profile(self) -> Change | None:
        """Return the function that changes a host's profiles; None if the workload has no profiles."""

    @property
    def next_ns(self) -> int | None:
        """Return when `act` is due, or None."""

    def clock(self) -> int:
        """Return the present time: CLOCK_MONOTONIC on a live fabric, virtual time on a simulated fabric."""

    def wait(self, until_ns: int, paths: bool) -> None:
        """Wait until ``until_ns`` or an event.

        ``paths`` is true if a trial is waiting until all paths are in use again.
        """

    def act(self) -> None:
        """Perform all due actions of the workload's processes."""


class _NoDeaths:
    """The `SwitchWatch` of virtual time. A simulated switch ends only by a fault."""

    reviving = False

    def require_death(self) -> None:
        """Raise RuntimeError, because a simulated switch ends only by a fault."""
        raise RuntimeError("a simulated switch does not end by itself")


class Course:
    """The plan of one repetition of a scenario, and its execution in a world."""

    def __init__(
        self, scenario: Scenario, transport: Transport, fabric: Fabric, placement: Placement, seed: int
    ) -> None:
        self._scenario = scenario
        self._transport = transport
        self._fabric = fabric
        self._placement = placement
        self._seed = seed
        self._length_ns = placement.length_ns or scenario.limit_ns
        self.specs = faults_met(scenario.faults, transport)
        self.links_used = tuple(placement.links_used(fabric))
        """All links that packets of the workload can take."""

    @property
    def needs_busiest(self) -> bool:
        """Return True if a fault at a given time is at the busiest link."""
        return any(isinstance(spec, TimedFault) and BUSIEST in spec.where for spec in self.specs)

    @property
    def only_sequences(self) -> bool:
        """Return True if all faults are sequential faults.

        Then the machine's load is judged separately for each trial.
        """
        return bool(self.specs) and all(isinstance(spec, SequentialFaults) for spec in self.specs)

    def planned(self) -> Iterator[PlannedFault]:
        """Yield the faults at given times, in order of time."""
        return schedule(self.specs, self._fabric, self._seed, self._length_ns, self.links_used)

    def faults(
        self,
        world: World,
        injector: Injector,
        timed: TimedSource,
        step: Callable[[], None],
        say: Callable[[str], None] = lambda line: None,
    ) -> FaultRun:
        """Return the object that makes all faults of the repetition.

        ``timed`` makes the faults whose times are in the scenario.
        """
        sources, sequences = [timed], list[SequenceSource]()
        deaths: Deaths = world.deaths or _NoDeaths()
        for number, spec in enumerate(self.specs):
            if isinstance(spec, RandomFaults):
                hosts = self._placement.hosts
                drawn = random_faults(self._fabric, hosts, spec, self._seed, self._length_ns, number)
                sources.append(TimedSource(injector, drawn, timed.start_ns))
            elif isinstance(spec, SequentialFaults):
                trials = trials_of(spec, number, self._fabric, self._seed, self.links_used)
                pace = world.pace if self.only_sequences and not sequences else None
                paths, marks = world.workload, world.marks
                sequences.append(
                    SequenceSource(injector, trials, spec.settle_ns, paths, marks, deaths, step, say, pace)
                )
        profiles, change = None, world.change_profile
        if change is not None and self._scenario.profiles:
            hosts = self._placement.hosts
            profiles = ProfileSource(self._scenario.profiles, hosts, change, timed.start_ns)
        return FaultRun(injector, sources, sequences, world.deaths, profiles)

    def run(self, world: World, faults: FaultRun, meter: LinkMeter, measure_ns: int) -> None:
        """Perform all actions when due, until the workload is done, an error is found, or time is over."""
        agents, length_ns = self._scenario.workload.kind in AGENT_KINDS, self._placement.length_ns
        deadline: int | None = measure_ns + self._scenario.limit_ns
        if agents:
            deadline = None if length_ns is None else measure_ns + length_ns
        while not world.workload.over and not (agents and deadline is None and faults.over):
            dues = (faults.next_ns, world.routes.next_ns, meter.next_ns, world.next_ns, deadline)
            due = min((t for t in dues if t is not None), default=world.clock() + LONGEST_WAIT_NS)
            world.wait(due, faults.waits_for_paths)
            faults.act(world.clock)
            world.routes.act(world.clock())
            meter.act(world.clock)
            world.act()
            if deadline is not None and world.clock() >= deadline:
                return

    def evidence(
        self,
        number: int,
        directory: Path,
        span: tuple[int, int],
        faults: FaultRun,
        collected: Collected,
        meter: LinkMeter,
        changes: Sequence[RouteChange],
        interrupted: str | None,
    ) -> Evidence:
        """Return the evidence of the repetition, except for parts that only a live or a virtual run has.

        ``span`` is the beginning and the end of the measurement. ``interrupted`` is why the measurement ended
        early.
        """
        failures = [*faults.all_failures, *collected.failures]
        if faults.late_ns > MOST_LATE_NS:
            failures.append(f"a fault was made or undone {faults.late_ns / 1e6:.0f} ms after it was due")
        for sequence in faults.sequences:
            if not sequence.over and interrupted is None:
                failures.append(f"the workload was over after {sequence.done} of {sequence.wanted} trials")
        wanted = None
        if self.only_sequences:
            wanted = sum(spec.trials for spec in self.specs if isinstance(spec, SequentialFaults))
        flows = self._placement.params.get("flows", ())
        return Evidence(
            transport=self._transport,
            number=number,
            seed=self._seed,
            fabric=self._fabric,
            hosts=self._placement.hosts,
            pairs=self._placement.pairs,
            workload=self._scenario.workload.model_dump(mode="json"),
            measure_ns=span[0],
            end_ns=span[1],
            length_ns=self._placement.length_ns,
            series_ns=self._scenario.measure.series_ns,
            warmup_ns=self._scenario.warmup_ns,
            flow_bytes=tuple(int(flow["message_bytes"]) for flow in flows),
            faults=faults.records(),
            event_logs=collected.event_logs,
            samples=collected.samples,
            route_changes=tuple(changes),
            wanted=wanted,
            rehearsals=sum(sequence.rehearsals for sequence in faults.sequences),
            links=meter.series(span[0]),
            counters=collected.counters,
            bytes_delivered=collected.bytes_delivered,
            problem=collected.problem,
            failure=collected.failure,
            interrupted=interrupted,
            notes=(*collected.notes, *faults.notes),
            failures=tuple(failures),
            data=directory.name,
            details=collected.details,
        )
