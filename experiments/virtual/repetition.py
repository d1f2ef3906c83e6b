"""One repetition in virtual time: the workload, its faults, and the same evidence as of a live run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from mrclab.experiments.measure.evidence import Evidence, RouteChange
from mrclab.experiments.measure.faults import FaultRecord, save_faults
from mrclab.experiments.measure.load import Load
from mrclab.experiments.run.drivers.driver import Collected
from mrclab.experiments.run.fault_run import TimedSource
from mrclab.experiments.run.injection import Injector
from mrclab.experiments.run.late_detection import LateDetection
from mrclab.experiments.run.link_meter import PERIOD_NS, LinkMeter
from mrclab.experiments.run.sequence import SequenceSource
from mrclab.experiments.run.traffic import busiest_link
from mrclab.experiments.spec.fault_schedule import PlannedFault, schedule, trials_of
from mrclab.experiments.spec.faults import BUSIEST, FaultSpec, RandomFaults, SequentialFaults
from mrclab.experiments.spec.links import metered
from mrclab.experiments.spec.model import Scenario
from mrclab.experiments.spec.one_plane import faults_met
from mrclab.experiments.spec.random_faults import random_faults
from mrclab.experiments.spec.transports import Transport
from mrclab.experiments.spec.workloads import AGENT_KINDS
from mrclab.experiments.virtual.captures import PcapRecorder, recording_of
from mrclab.experiments.virtual.fabric import CHOICES, VirtualFabric
from mrclab.experiments.virtual.flow_meter import FlowMeter
from mrclab.experiments.virtual.ranks import VirtualRanks
from mrclab.experiments.virtual.spray import VirtualSpray
from mrclab.experiments.virtual.workload import MakeWorkload, VirtualSetting, VirtualWorkload
from mrclab.faults.model import Fault
from mrclab.simulator.clock import PS_PER_NS
from mrclab.simulator.network import Network
from mrclab.topologies import Fabric

WORKLOADS: dict[str, MakeWorkload] = {"spray": VirtualSpray}
LONGEST_WAIT_NS = 10**9
UNLOADED = Load(0, None, None, None, None, None, None, None)
LINK_BINS = 30
"""Number of bins, or more, in which the links' bytes are counted; a bin has 100 ms at most."""
LINKS_OF_A_PATH = 4
BUSIEST_PART = 10
"""The busiest link is determined in this part (1/n) of the warm-up, at its end."""


class NoLoad:
    """A recorder's report on the machine: in virtual time it always keeps up."""

    def mark(self) -> None:
        """Do nothing."""

    def last_load(self) -> Load:
        """Return no load."""
        return UNLOADED

    def amend(self, load: Load) -> None:
        """Do nothing."""

    def take_as_usual(self) -> None:
        """Do nothing."""


class NoDeaths:
    """A watch over switch processes: none ends by itself."""

    reviving = False

    def require_death(self) -> None:
        """Raise: there is no such death."""
        raise RuntimeError("a simulated switch does not end by itself")


class Reconvergence(LateDetection):
    """Routes that react to faults as late as a routing protocol would (transports with ``detection_ns``)."""

    def __init__(self, network: Network, transport: Transport, seed: int) -> None:
        super().__init__(network.fabric, transport.detection_ns, seed)
        self._network = network
        self._choice = CHOICES.get(transport.routing, "hash")
        self._withdrawn: set[str] = set()
        self.changes: list[RouteChange] = []

    def act(self, now_ns: int) -> None:
        """Withdraw and restore the routes that are due."""
        for change in self.due(now_ns):
            (self._withdrawn.discard if change.up else self._withdrawn.add)(change.link)
            self._network.route(frozenset(self._withdrawn), self._choice)
            self.changes.append(RouteChange(change.at_ns, now_ns))


class VirtualRepetition:
    """Runs one repetition of a transport on a separate fabric."""

    def __init__(
        self, scenario: Scenario, transport: Transport, fabric: Fabric, out: Path, step: Callable[[], None]
    ) -> None:
        self._scenario = scenario
        self._transport = transport
        self._fabric = fabric
        self._out = out
        self._step = step
        self._specs = faults_met(scenario.faults, transport)
        self._captures: dict[str, PcapRecorder] = {}

    def run(self, number: int) -> Evidence:
        """Run the repetition and return its evidence."""
        scenario, transport = self._scenario, self._transport
        seed = scenario.seed + number
        directory = self._out / f"{transport.name}-{number}"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        running = VirtualFabric(self._fabric, transport, seed, scenario.propagation_ns, scenario.virtual)
        placement = scenario.placement(self._fabric, seed)
        setting = VirtualSetting(running, scenario, placement, seed, directory)
        workload = WORKLOADS.get(scenario.workload.kind, VirtualRanks)(setting)
        self._record(setting)
        if transport.loss:
            for link in self._fabric.links:
                if link.kind == "host":
                    running.faults.apply(Fault("loss", link.name, "down", transport.loss))
        run = _Run(setting, workload, self._specs, self._step)
        try:
            run.carry_out()
            workload.stop()
        finally:
            for capture in self._captures.values():
                capture.close()
        save_faults(directory / "faults.json", run.injector.records())
        return self._evidence(setting, run, workload.collect(), number)

    def _record(self, setting: VirtualSetting) -> None:
        """Capture at every host that takes part, if a live run would."""
        measured = any(not isinstance(spec, RandomFaults) for spec in self._scenario.faults)
        self._captures = {}
        if not self._scenario.measure.capture and not measured:
            return
        folder = setting.directory / "captures"
        folder.mkdir()
        for host in dict.fromkeys(setting.placement.hosts):
            recorder = self._captures[host] = PcapRecorder(folder / f"{host}.pcap")
            setting.fabric.network.nics[host].recorder = recorder

    def _in_flight_ns(self, fabric: VirtualFabric, faults: Sequence[FaultRecord]) -> int:
        """Return the longest that a packet can be on its way: every link of its path may be made longer."""
        longest_ns = max((fault.params.get("delay_ns", 0) for fault in faults), default=0)
        return int(fabric.in_flight_ns + LINKS_OF_A_PATH * longest_ns)

    def _evidence(self, setting: VirtualSetting, run: _Run, collected: Collected, number: int) -> Evidence:
        scenario = self._scenario
        wanted = None
        if self._specs and all(isinstance(spec, SequentialFaults) for spec in self._specs):
            wanted = sum(entry.trials for entry in scenario.sequences)
        faults = run.injector.records()
        flows = setting.placement.params.get("flows", ())
        return Evidence(
            transport=self._transport,
            number=number,
            seed=setting.seed,
            fabric=self._fabric,
            hosts=setting.placement.hosts,
            pairs=setting.placement.pairs,
            workload=scenario.workload.model_dump(mode="json"),
            measure_ns=run.measure_ns,
            end_ns=run.end_ns,
            length_ns=setting.placement.length_ns,
            series_ns=scenario.measure.series_ns,
            warmup_ns=scenario.warmup_ns,
            in_flight_ns=self._in_flight_ns(setting.fabric, faults),
            flow_bytes=tuple(int(flow["message_bytes"]) for flow in flows),
            faults=faults,
            captures={host: capture.path for host, capture in self._captures.items()},
            recording=recording_of(self._captures),
            event_logs=collected.event_logs,
            samples=collected.samples,
            route_changes=tuple(run.routes.changes),
            wanted=wanted,
            links=run.meter.series(run.measure_ns),
            counters={**collected.counters, **run.flow.counters()},
            flow_control=run.flow.found,
            bytes_delivered=collected.bytes_delivered,
            problem=collected.problem,
            failure=collected.failure,
            notes=(*collected.notes, *run.notes()),
            failures=(*collected.failures, *run.failures()),
            data=setting.directory.name,
            details=collected.details,
        )


class _Run:
    """The workload and its faults, as time passes."""

    def __init__(
        self,
        setting: VirtualSetting,
        workload: VirtualWorkload,
        specs: tuple[FaultSpec, ...],
        step: Callable[[], None],
    ) -> None:
        self._setting = setting
        self._workload = workload
        self._specs = specs
        self._network = setting.fabric.network
        self._clock = self._network.clock
        self.routes = Reconvergence(self._network, setting.fabric.transport, setting.seed)
        self.injector = Injector(setting.fabric.faults, self.routes.note)
        self._step = step
        self._timed: list[TimedSource] = []
        self._sequences: list[SequenceSource] = []
        self.measure_ns = self.end_ns = 0
        self.meter = self._meter(0)
        self.flow = FlowMeter(self._network, setting.scenario.measure.series_ns)

    def _now_ns(self) -> int:
        return self._clock.now_ns

    def _meter(self, measure_ns: int) -> LinkMeter:
        links = metered(self._network.fabric, self._setting.scenario.measure.links)
        length_ns = self._setting.placement.length_ns or PERIOD_NS * LINK_BINS
        period_ns = max(1, min(PERIOD_NS, length_ns // LINK_BINS))
        return LinkMeter(self._network.fabric, links, self._bytes_sent, measure_ns, period_ns)

    def _bytes_sent(self) -> dict[str, int]:
        """Return the bytes that every port has sent, by the name of its interface."""
        return {f"{near}-eth{port.number}": port.bytes for (near, _), port in self._network.links.items()}

    def carry_out(self) -> None:
        """Run the workload with its faults."""
        length_ns = self._setting.placement.length_ns
        self.measure_ns = self._workload.start()
        planned = self._plan()
        if any(fault.place == BUSIEST for fault in planned):
            self.injector.busiest = self._find_busiest()
        self._run_to(self.measure_ns)
        self._sources(planned)
        self.meter = self._meter(self.measure_ns)
        self.flow.begin()
        if length_ns is not None:
            # Packets sent until then may arrive much later; that time is not the workload's.
            self._clock.call_at((self.measure_ns + length_ns) * PS_PER_NS, self.flow.end)
        self._loop(length_ns)
        self.end_ns = self._now_ns()
        self.flow.end()
        self.injector.undo_all()

    def _used(self) -> tuple[str, ...]:
        return tuple(self._setting.placement.links_used(self._network.fabric))

    def _plan(self) -> tuple[PlannedFault, ...]:
        length_ns = self._setting.placement.length_ns or self._setting.scenario.limit_ns
        fabric, seed = self._network.fabric, self._setting.seed
        return schedule(self._specs, fabric, seed, length_ns, self._used())

    def _sources(self, planned: tuple[PlannedFault, ...]) -> None:
        setting, fabric = self._setting, self._network.fabric
        self._timed = [TimedSource(self.injector, planned, self.measure_ns)]
        for number, spec in enumerate(self._specs):
            if isinstance(spec, RandomFaults):
                length_ns = setting.placement.length_ns or setting.scenario.limit_ns
                drawn = random_faults(fabric, setting.placement.hosts, spec, setting.seed, length_ns, number)
                self._timed.append(TimedSource(self.injector, drawn, self.measure_ns))
            elif isinstance(spec, SequentialFaults):
                trials = trials_of(spec, number, fabric, setting.seed, self._used())
                self._sequences.append(
                    SequenceSource(
                        self.injector,
                        trials,
                        spec.settle_ns,
                        self._workload,
                        NoLoad(),
                        NoDeaths(),
                        self._step,
                    )
                )

    def _find_busiest(self) -> str:
        """Return the link that carries most at the end of the warm-up."""
        self._run_to(self.measure_ns - (self.measure_ns - self._now_ns()) // BUSIEST_PART)
        before = self._bytes_sent()
        self._run_to(self.measure_ns)
        return busiest_link(self._network.fabric, before, self._bytes_sent(), self._used())

    def _run_to(self, t_ns: int) -> None:
        """Let time pass up to then, whatever stops the clock before."""
        while self._now_ns() < t_ns and not self._workload.over:
            self._clock.run(t_ns * PS_PER_NS)

    def _loop(self, length_ns: int | None) -> None:
        """Do everything that is due until the workload is over or time is up."""
        scenario = self._setting.scenario
        agents = scenario.workload.kind in AGENT_KINDS
        deadline: int | None = self.measure_ns + scenario.limit_ns
        if agents:
            deadline = None if length_ns is None else self.measure_ns + length_ns
        sources: list[TimedSource | SequenceSource] = [*self._timed, *self._sequences]
        while not self._workload.over:
            if agents and deadline is None and all(source.over for source in sources):
                return
            dues = [source.next_ns for source in sources if not source.over]
            dues += [self.routes.next_ns, self.meter.next_ns, deadline]
            if any(s.next_ns is None and not s.over for s in self._sequences):
                # One waits until all paths are back; the workload stops the clock when that may be so.
                dues.append(self._now_ns() + (LONGEST_WAIT_NS if self._workload.restored is None else 0))
            due = min((t for t in dues if t is not None), default=self._now_ns() + LONGEST_WAIT_NS)
            self._clock.run(max(due * PS_PER_NS, self._clock.now_ps))
            for source in sources:
                source.act(self._now_ns)
            self.routes.act(self._now_ns())
            self.meter.act(self._now_ns)
            if deadline is not None and self._now_ns() >= deadline:
                return

    def notes(self) -> tuple[str, ...]:
        """Return notes for the reader."""
        skipped = sum(source.skipped for source in self._timed)
        found = [f"{skipped} faults were left out: their places were broken already"] if skipped else []
        return (*found, *(note for source in self._sequences for note in source.notes))

    def failures(self) -> tuple[str, ...]:
        """Return why the figures are not to be trusted."""
        return tuple(
            f"the workload was over after {source.done} of {source.wanted} trials"
            for source in self._sequences
            if not source.over
        )
