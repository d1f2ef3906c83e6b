"""The course of a repetition, live and in virtual time: its faults, what is due when, and its evidence.

A `World` is the small part that differs: its clock, how to wait in it, its routes and its workload.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from mrclab.experiments.spec.faults import RandomFaults, SequentialFaults
from mrclab.experiments.spec.model import Scenario
from mrclab.experiments.spec.placement import Placement
from mrclab.experiments.spec.workloads import AGENT_KINDS
from mrclab.hosts.transports.table import Transport
from mrclab.topologies import Fabric

LONGEST_WAIT_NS = 10**9
MOST_LATE_NS = 50_000_000  # of a fault: a run with a later one is not the requested run


class Workload(Paths, Protocol):
    """The interface of a workload to its course."""

    @property
    def over(self) -> bool:
        """Return True when all is done, or something that must not happen did."""


class Routes(Protocol):
    """The interface of routes that react to faults."""

    @property
    def next_ns(self) -> int | None:
        """Return when something is due; None: nothing is."""

    def act(self, now_ns: int) -> None:
        """Do what is due."""


class World(Protocol):
    """A live fabric, or one in virtual time, with a workload on it. Times are of its clock, ns."""

    @property
    def workload(self) -> Workload:
        """Return the workload."""

    @property
    def routes(self) -> Routes:
        """Return the routes."""

    @property
    def marks(self) -> Marks:
        """Return the recorder of the machine's load."""

    @property
    def deaths(self) -> SwitchWatch | None:
        """Return the watch over switch processes; None: no switch ends by itself."""

    @property
    def pace(self) -> Pace | None:
        """Return the adapter of the workload's rate; None: the rate is fixed."""

    @property
    def change_profile(self) -> Change | None:
        """Return the function that changes a host's profiles; None: the workload has none."""

    @property
    def next_ns(self) -> int | None:
        """Return when `act` is due; None: it is not."""

    def clock(self) -> int:
        """Return the time."""

    def wait(self, until_ns: int, paths: bool) -> None:
        """Let time pass until then, or until something happens; ``paths``: a trial waits for all paths."""

    def act(self) -> None:
        """Do what is due in the workload's processes."""


class _NoDeaths:
    """A watch over switch processes of which none ends."""

    reviving = False

    def require_death(self) -> None:
        """Raise RuntimeError: there is no such death."""
        raise RuntimeError("a simulated switch does not end by itself")


class Course:
    """The plan of one repetition, from a scenario, and its execution in a world."""

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
        """The links that the workload's packets can take."""

    @property
    def only_sequences(self) -> bool:
        """Return True if all faults come one after another: then the load is judged trial by trial."""
        return bool(self.specs) and all(isinstance(spec, SequentialFaults) for spec in self.specs)

    def planned(self) -> tuple[PlannedFault, ...]:
        """Return the faults at given times."""
        return schedule(self.specs, self._fabric, self._seed, self._length_ns, self.links_used)

    def faults(
        self,
        world: World,
        injector: Injector,
        timed: TimedSource,
        step: Callable[[], None],
        say: Callable[[str], None] = lambda line: None,
    ) -> FaultRun:
        """Return the execution of all faults; ``timed`` has those at given times."""
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
        """Do everything that is due until the workload is over, something is wrong, or time is up."""
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
        """Return the evidence of the repetition, without what only its world has.

        ``span`` is the beginning and the end of the measurement, ``interrupted`` the cause of an early end.
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
