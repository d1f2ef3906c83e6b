"""Run a scenario in virtual time: one transport after another, one repetition after another.

This module uses one process; `mrclab.run_jobs` uses several processes. A repetition runs the workload with
its faults, and gives the same evidence as a live run.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mrclab.experiments.measure.evidence import Collected, Evidence, RouteChange
from mrclab.experiments.measure.faults import FaultRecord, save_faults
from mrclab.experiments.measure.load import Load
from mrclab.experiments.measure.repetition import Repetition, measure, save_repetition
from mrclab.experiments.run.course import LONGEST_WAIT_NS, Course
from mrclab.experiments.run.fault_run import TimedSource
from mrclab.experiments.run.injection import Injector
from mrclab.experiments.run.late_detection import LateDetection
from mrclab.experiments.run.link_bytes import PERIOD_NS, LinkMeter, busiest_link
from mrclab.experiments.run.outcome import Outcome, repetition_directory
from mrclab.experiments.spec.faults import RandomFaults
from mrclab.experiments.spec.graph_workloads import GRAPHS
from mrclab.experiments.spec.model import SIMULATED, Scenario
from mrclab.experiments.spec.placement import metered
from mrclab.experiments.spec.transports import require_simulated
from mrclab.experiments.virtual.fabric import (
    CHOICES,
    MakeWorkload,
    VirtualFabric,
    VirtualSetting,
    VirtualWorkload,
)
from mrclab.experiments.virtual.meters import FlowMeter, PcapRecorder, QueueMeter, recording_of
from mrclab.experiments.virtual.ranks import VirtualRanks
from mrclab.experiments.virtual.spray import VirtualSpray
from mrclab.faults.kinds import Fault
from mrclab.hosts.transports.table import Transport
from mrclab.linux.system import use_huge_pages
from mrclab.simulator.clock import PS_PER_NS
from mrclab.simulator.network import Network
from mrclab.topologies import Fabric, one_plane

WORKLOADS: dict[str, MakeWorkload] = {"spray": VirtualSpray}
UNLOADED = Load(0, None, None, None, None, None, None, None)
LINK_BINS = 30
"""The bytes of links are counted in periods. The measurement has at least this number of periods."""
LINKS_OF_A_PATH = 4
HUGE_PAGES_FROM_HOSTS = 256
"""Fabrics with at least this number of hosts use huge pages. In smaller fabrics, huge pages cost more time
than they save."""
BUSIEST_PART = 10
"""The busiest link is determined in the last 1/10 of the warm-up."""


class NoLoad:
    """Replaces the recorder of the machine's load: in virtual time no machine is too slow."""

    def mark(self) -> None:
        """Do nothing, because in virtual time no CPU load is recorded."""

    def last_load(self) -> Load:
        """Return the load of an idle machine: in virtual time, the machine's load has no effect."""
        return UNLOADED

    def amend(self, load: Load) -> None:
        """Do nothing, because in virtual time no CPU load is recorded."""

    def take_as_usual(self) -> None:
        """Do nothing, because in virtual time no CPU load is recorded."""


class Reconvergence(LateDetection):
    """Routes that react to faults with the delay of a routing protocol (transports with ``detection_ns``)."""

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
    """Run one repetition of a transport on a new fabric."""

    def __init__(
        self, scenario: Scenario, transport: Transport, fabric: Fabric, out: Path, step: Callable[[], None]
    ) -> None:
        self._scenario = scenario
        self._transport = transport
        self._fabric = fabric
        self._out = out
        self._step = step
        self._captures: dict[str, PcapRecorder] = {}

    def run(self, number: int) -> Evidence:
        """Run the repetition and return its evidence."""
        scenario, transport = self._scenario, self._transport
        seed = scenario.seed + number
        directory = self._out / f"{transport.name}-{number}"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        running = VirtualFabric(
            self._fabric,
            transport,
            seed,
            scenario.propagation_ns,
            scenario.virtual,
            captured=self._captured(),
        )
        placement = scenario.placement(self._fabric, seed)
        setting = VirtualSetting(running, scenario, placement, seed, directory)
        workload = WORKLOADS.get(scenario.workload.kind, VirtualRanks)(setting)
        self._record(setting)
        if transport.loss:
            for link in self._fabric.links:
                if link.kind == "host":
                    running.faults.apply(Fault("loss", link.name, "down", transport.loss))
        run = _Run(setting, workload, self._step)
        try:
            run.carry_out()
            workload.stop()
        finally:
            for capture in self._captures.values():
                capture.close()
        save_faults(directory / "faults.json", run.injector.records())
        return self._evidence(setting, run, workload.collect(), number)

    def _captured(self) -> bool:
        """Return True if a live run would capture packets: on request, or to measure the times of faults."""
        # A graph workload is measured by the lengths of its steps. This needs no captures of hundreds of
        # hosts.
        graph = self._scenario.workload.kind in GRAPHS
        measured = not graph and any(not isinstance(spec, RandomFaults) for spec in self._scenario.faults)
        return self._scenario.measure.capture or measured

    def _record(self, setting: VirtualSetting) -> None:
        """Capture packets at every host of the workload, if a live run would do so."""
        self._captures = {}
        if not self._captured():
            return
        folder = setting.directory / "captures"
        folder.mkdir()
        for host in dict.fromkeys(setting.placement.hosts):
            recorder = self._captures[host] = PcapRecorder(folder / f"{host}.pcap")
            setting.fabric.network.nics[host].recorder = recorder

    def _in_flight_ns(self, fabric: VirtualFabric, faults: Sequence[FaultRecord]) -> int:
        """Return the longest time that a packet can spend in the network.

        A fault that delays packets is assumed to be on all links of a path.
        """
        longest_ns = max((fault.params.get("delay_ns", 0) for fault in faults), default=0)
        return int(fabric.in_flight_ns + LINKS_OF_A_PATH * longest_ns)

    def _evidence(self, setting: VirtualSetting, run: _Run, collected: Collected, number: int) -> Evidence:
        span, changes = (run.measure_ns, run.end_ns), run.routes.changes
        found = run.course.evidence(
            number, setting.directory, span, run.faults, collected, run.meter, changes, None
        )
        return replace(
            found,
            in_flight_ns=self._in_flight_ns(setting.fabric, found.faults),
            captures={host: capture.path for host, capture in self._captures.items()},
            recording=recording_of(self._captures),
            counters={**collected.counters, **run.flow.counters()},
            flow_control=run.flow.found,
            details={**collected.details, **run.queue_details()},
        )


class _Run:
    """A run in virtual time with its workload; it implements `mrclab.experiments.run.course.World`."""

    deaths = None
    pace = None

    def __init__(self, setting: VirtualSetting, workload: VirtualWorkload, step: Callable[[], None]) -> None:
        self._setting = setting
        self.workload = workload
        self._network = setting.fabric.network
        self._clock = self._network.clock
        self.marks = NoLoad()
        self.routes = Reconvergence(self._network, setting.fabric.transport, setting.seed)
        self.injector = Injector(setting.fabric.faults, self.routes.note)
        self.change_profile = workload.change_profile if isinstance(workload, VirtualSpray) else None
        transport, placement = setting.fabric.transport, setting.placement
        self.course = Course(setting.scenario, transport, self._network.fabric, placement, setting.seed)
        self._step = step
        self.measure_ns = self.end_ns = 0
        self.flow = FlowMeter(self._network, setting.scenario.measure.series_ns)

    def clock(self) -> int:
        """Return the virtual time, ns."""
        return self._clock.now_ns

    def _meter(self, measure_ns: int) -> LinkMeter:
        links = metered(self._network.fabric, self._setting.scenario.measure.links)
        length_ns = self._setting.placement.length_ns or PERIOD_NS * LINK_BINS
        period_ns = max(1, min(PERIOD_NS, length_ns // LINK_BINS))
        return LinkMeter(self._network.fabric, links, self._bytes_sent, measure_ns, period_ns)

    def _queue_meter(self, measure_ns: int) -> QueueMeter:
        measure = self._setting.scenario.measure
        return QueueMeter(self._network, measure_ns, measure.series_ns, wanted=measure.queues)

    def _bytes_sent(self) -> dict[str, int]:
        """Return the number of bytes that each port has sent, by the name of the port's interface."""
        return {f"{near}-eth{port.number}": port.bytes for (near, _), port in self._network.links.items()}

    def carry_out(self) -> None:
        """Run the workload with its faults."""
        length_ns = self._setting.placement.length_ns
        self.measure_ns = self.workload.start()
        if len(self._network.fabric.hosts) >= HUGE_PAGES_FROM_HOSTS:
            use_huge_pages()
        if self.course.needs_busiest:
            self.injector.busiest = self._find_busiest()
        self._run_to(self.measure_ns)
        timed = TimedSource(self.injector, self.course.planned(), self.measure_ns)
        self.faults = self.course.faults(self, self.injector, timed, self._step)
        self.meter = self._meter(self.measure_ns)
        self.queues = self._queue_meter(self.measure_ns)
        self.flow.begin()
        if length_ns is not None:
            # End the flow meter when the measurement ends, although packets in flight may arrive much later.
            self._clock.call_at((self.measure_ns + length_ns) * PS_PER_NS, self.flow.end)
        self.course.run(self, self.faults, self.meter, self.measure_ns)
        self.end_ns = self.clock()
        self.flow.end()
        self.injector.undo_all()

    def _find_busiest(self) -> str:
        """Return the link that carries the most bytes at the end of the warm-up."""
        self._run_to(self.measure_ns - (self.measure_ns - self.clock()) // BUSIEST_PART)
        before = self._bytes_sent()
        self._run_to(self.measure_ns)
        return busiest_link(self._network.fabric, before, self._bytes_sent(), self.course.links_used)

    def _run_to(self, t_ns: int) -> None:
        """Run the clock until ``t_ns``. If something stops the clock earlier, start it again."""
        while self.clock() < t_ns and not self.workload.over:
            self._clock.run(t_ns * PS_PER_NS)

    def wait(self, until_ns: int, paths: bool) -> None:
        """Run the clock to ``until_ns``, or until the workload stops the clock.

        ``paths`` is true if a trial waits until all paths are in use again. So the workload stops the clock
        when an EV is used again.
        """
        if paths:
            wait_ns = LONGEST_WAIT_NS if self.workload.restored is None else 0
            until_ns = min(until_ns, self.clock() + wait_ns)
        self._clock.run(max(until_ns * PS_PER_NS, self._clock.now_ps))

    @property
    def next_ns(self) -> int | None:
        """Return the time of the next reading of the queues."""
        return self.queues.next_ns

    def act(self) -> None:
        """Read the queues if that is due. The workload needs no call, because the clock runs it."""
        self.queues.act(self.clock())

    def queue_details(self) -> dict[str, Any]:
        """Return the readings of queues; {} if the scenario does not ask for them."""
        wanted = self._setting.scenario.measure.queues
        return {"queues": self.queues.found(self.measure_ns)} if wanted else {}


def run_scenario(
    scenario: Scenario,
    out: Path,
    outcome: Outcome,
    *,
    say: Callable[[str], None],
    step: Callable[[int], None],
) -> None:
    """Run every transport in virtual time. Raise InputError if the simulator cannot run a transport.

    ``say`` gets progress messages. ``step`` gets the number of finished trials or, if there are no trials, of
    finished repetitions.
    """
    require_simulated(scenario.workload.kind, scenario.transports)
    outcome.target = SIMULATED
    fabric = scenario.fabric()
    each = scenario.steps // (len(scenario.transports) * scenario.repetitions)
    done = 0

    def one_more() -> None:
        nonlocal done
        done += 1
        step(done)

    for transport in scenario.transports:
        numbers = outcome.left(scenario, transport)
        done += each * (scenario.repetitions - len(numbers))
        step(done)
        say(f"{transport.name}: {transport.described}")
        for number in numbers:
            found = repeat(scenario, transport, fabric, number, out, one_more)
            outcome.began = True
            outcome.add(transport.name, found)
            if not scenario.sequences:
                one_more()


def repeat(
    scenario: Scenario,
    transport: Transport,
    fabric: Fabric,
    number: int,
    out: Path,
    step: Callable[[], None],
) -> Repetition:
    """Run, measure and save one repetition of a transport; call ``step`` after each trial."""
    used = one_plane(fabric) if transport.one_plane else fabric
    found = _measured(VirtualRepetition(scenario, transport, used, out, step), number)
    directory = repetition_directory(out, transport.name, number)
    if not scenario.measure.capture:
        shutil.rmtree(directory / "captures", ignore_errors=True)
    save_repetition(directory, found)
    return found


def _measured(runner: VirtualRepetition, number: int) -> Repetition:
    """Run and measure a repetition. Garbage collection is off, because a run makes no cyclic garbage."""
    gc.disable()
    try:
        return measure(runner.run(number))
    finally:
        gc.enable()
        gc.collect()
