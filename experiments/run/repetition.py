"""One repetition on a fabric that is up: the workload, its faults, and the evidence of both."""

from __future__ import annotations

import contextlib
import select
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from mrclab.experiments.measure.clock import measure_offset
from mrclab.experiments.measure.evidence import Evidence
from mrclab.experiments.measure.faults import save_faults
from mrclab.experiments.measure.load import Load
from mrclab.experiments.run.captures.recorder import CaptureSource, Recorder, tcpdump_at
from mrclab.experiments.run.captures.tap import TapSource
from mrclab.experiments.run.drivers.driver import Collected, Driver, Setting
from mrclab.experiments.run.drivers.mesh import MeshDriver
from mrclab.experiments.run.drivers.ranks import RankDriver
from mrclab.experiments.run.drivers.spray import SprayDriver
from mrclab.experiments.run.fault_run import FaultRun, TimedSource
from mrclab.experiments.run.injection import Injector
from mrclab.experiments.run.link_meter import LinkMeter
from mrclab.experiments.run.routing import Reaction
from mrclab.experiments.run.sequence import SequenceSource
from mrclab.experiments.run.switch_deaths import SwitchDeaths, by_switch
from mrclab.experiments.run.traffic import busiest_link, bytes_sent
from mrclab.experiments.run.waiting import sleep_until
from mrclab.experiments.spec.fault_schedule import PlannedFault, schedule, trials_of
from mrclab.experiments.spec.faults import BUSIEST, BUSIEST_NS, RandomFaults, SequentialFaults
from mrclab.experiments.spec.links import metered
from mrclab.experiments.spec.model import Scenario
from mrclab.experiments.spec.one_plane import faults_met
from mrclab.experiments.spec.random_faults import random_faults
from mrclab.experiments.spec.transports import Transport
from mrclab.experiments.spec.workloads import AGENT_KINDS
from mrclab.experiments.training.alone import TRANSFORMER
from mrclab.experiments.training.progress import COURSE, CourseLog
from mrclab.faults.kinds import KINDS
from mrclab.faults.model import Fault, Place
from mrclab.hosts.remote import RemoteAgent
from mrclab.linux.errors import SwitchError, reason
from mrclab.linux.life.signals import Ended
from mrclab.linux.scheduling import usable_cpus
from mrclab.p4src.targets import capabilities_of
from mrclab.testbed.running import RunningFabric, Say

FIRST_FAULTS_NS = 100_000_000  # before the measurement: when faults that are due at its start are made
MOST_LATE_NS = 50_000_000  # of a fault: a run with a later one is not the requested run

DRIVERS: dict[str, Callable[[Setting], Driver]] = {"spray": SprayDriver, "mesh": MeshDriver}
Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Parts:
    """The cooperating parts of a repetition."""

    driver: Driver
    recorder: Recorder
    deaths: SwitchDeaths
    injector: Injector
    reaction: Reaction
    faults: FaultRun
    meter: LinkMeter


class RepetitionRunner:
    """Runs repetitions of one transport, one after another."""

    def __init__(
        self,
        running: RunningFabric,
        scenario: Scenario,
        transport: Transport,
        out: Path,
        say: Say,
        step: Step,
    ) -> None:
        self._running = running
        self._scenario = scenario
        self._transport = transport
        self._out = out
        self._say = say
        self._step = step
        self.interrupted: BaseException | None = None
        """The cause of the run's end in the middle of the last repetition; None: it was not ended."""
        self._specs = faults_met(scenario.faults, transport)

    def run(self, number: int) -> Evidence:
        """Run a repetition and return its evidence. Raise AgentError, CaptureError, SwitchError.

        The cause of an early end, a signal included, is in ``interrupted``: the evidence until then is
        returned. A directory that an earlier attempt left is removed.
        """
        self.interrupted = None
        scenario, transport = self._scenario, self._transport
        seed = scenario.seed + number
        name = f"{transport.name}-{number}"
        directory = self._out / name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        logs = self._out / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        placement = scenario.placement(self._running.fabric, seed)
        log = logs / f"{name}-hosts.log"
        setting = Setting(self._running, scenario, transport, placement, seed, directory, log, self._say)
        with contextlib.ExitStack() as stack:
            driver: Driver = DRIVERS.get(scenario.workload.kind, RankDriver)(setting)
            stack.enter_context(driver)
            stack.enter_context(self._lossy_links())
            recorder = Recorder(
                directory,
                self._sources(setting),
                self._watched(driver),
                self._looked_at(driver),
                driver.beats,
            )
            with recorder, SwitchDeaths(self._running, recorder) as deaths:
                with driver.priority():
                    parts, measure_ns, end_ns = self._carry_out(setting, driver, recorder, deaths)
                with self._interruptible():
                    driver.stop()
                    parts.faults.look_back()
            collected = self._collected(driver, directory)
        save_faults(directory / "faults.json", parts.injector.records())
        return self._evidence(setting, parts, collected, number, measure_ns, end_ns)

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Treat an exception in the ``with`` as the end of the run: the evidence until then is kept."""
        try:
            yield
        except (Exception, KeyboardInterrupt, Ended) as error:
            # A switch that ended is the reason for the failures that it caused.
            why = self._running.ended()
            found = SwitchError(why) if why and isinstance(error, Exception) else error
            self.interrupted = self.interrupted or found

    def _collected(self, driver: Driver, directory: Path) -> Collected:
        """Return the evidence of the workload's processes; of an interrupted repetition the available
        part."""
        if self.interrupted is None:
            return driver.collect()
        try:
            return driver.collect()
        except Exception as error:
            logs = {path.stem: path for path in (directory / "events").glob("*.jsonl")}
            return Collected(event_logs=logs, failures=(f"what the hosts counted is lost: {error}",))

    def _sources(self, setting: Setting) -> dict[str, CaptureSource]:
        """Return where to capture: at every host that takes part, if faults are measured or on request.

        Taps if the kernel forwards anyway, else tcpdump. At a control, too: they cost time.
        """
        measured = any(not isinstance(spec, RandomFaults) for spec in self._scenario.faults)
        if not self._scenario.measure.capture and not measured:
            return {}
        hosts = dict.fromkeys(setting.placement.hosts)
        network, fabric = self._running.network, self._running.fabric
        if not capabilities_of(self._running.target_name).forwards_in_kernel:
            return {host: tcpdump_at(network, host) for host in hosts}
        offset_ns = measure_offset().offset_ns
        return {
            host: TapSource(
                network.names.host(host), tuple(port.ifname for port in fabric.host(host).ports), offset_ns
            )
            for host in hosts
        }

    def _watched(self, driver: Driver) -> dict[str, int]:
        """Return the processes whose waiting for a CPU counts."""
        pids = dict(driver.pids)
        forwards = not capabilities_of(self._running.target_name).forwards_in_kernel
        if self._scenario.workload.kind in AGENT_KINDS and forwards:
            pids |= by_switch(self._running)  # else the target's process only programs: the kernel forwards
        return pids

    def _looked_at(self, driver: Driver) -> dict[str, int]:
        """Return the processes whose standstills are not visible otherwise.

        An endpoint that beats reports it itself. A process that only programs switches stamps its writes,
        and nothing else of it is measured.
        """
        pids = {} if driver.rehearses else dict(driver.pids)
        if capabilities_of(self._running.target_name).forwards_in_kernel:
            return pids
        return {**pids, **by_switch(self._running)}

    @contextlib.contextmanager
    def _lossy_links(self) -> Iterator[None]:
        """Have every NIC lose a share of its received packets, if the transport has a ``loss``."""
        faults, made = self._running.faults, []
        links = [link.name for link in self._running.fabric.links if link.kind == "host"]
        try:
            for name in links if self._transport.loss else ():
                faults.apply(Fault("loss", name, "down", self._transport.loss))
                made.append(name)
            yield
        finally:
            for name in made:
                faults.undo(name)

    def _carry_out(
        self, setting: Setting, driver: Driver, recorder: Recorder, deaths: SwitchDeaths
    ) -> tuple[_Parts, int, int]:
        """Run the workload with its faults; return its parts, and when the measurement began and ended."""
        reaction = Reaction(self._running, self._transport, setting.seed)
        trains = setting.placement.job == TRANSFORMER
        course = CourseLog(setting.directory / COURSE if trains else None)
        injector = Injector(self._running.faults, partial(_note, reaction, deaths, course))
        planned = self._timed(setting)
        self._prepare(injector, planned)
        timed = TimedSource(injector, planned, measure_ns := driver.start())
        course.begin(measure_ns)
        agents = self._scenario.workload.kind in AGENT_KINDS
        if any(fault.place == BUSIEST for fault in planned):
            injector.busiest = self._find_busiest(setting, measure_ns)
            self._prepare(injector, planned)
        sleep_until(measure_ns - FIRST_FAULTS_NS)
        timed.make_first()
        sleep_until(measure_ns)
        if agents:  # ranks measure from a given time; agents do not, so all this may have taken longer
            measure_ns = timed.start_ns = time.monotonic_ns()
        faults = self._fault_run(setting, driver, recorder, deaths, injector, timed, measure_ns)
        meter = LinkMeter(
            self._running.fabric,
            metered(self._running.fabric, self._scenario.measure.links),
            partial(bytes_sent, self._running.network),
            measure_ns,
        )
        parts = _Parts(driver, recorder, deaths, injector, reaction, faults, meter)
        if not self._only_sequences:
            recorder.mark()
        with self._interruptible():
            self._loop(parts, measure_ns, setting.placement.length_ns)
        end_ns = time.monotonic_ns()
        if not self._only_sequences or self.interrupted is not None:
            recorder.mark()
        with self._interruptible():
            injector.undo_all()
            reaction.undo_all()
        return parts, measure_ns, end_ns

    @property
    def _only_sequences(self) -> bool:
        """Return True if all faults come one after another: then the load is judged trial by trial."""
        return bool(self._specs) and all(isinstance(spec, SequentialFaults) for spec in self._specs)

    def _timed(self, setting: Setting) -> tuple[PlannedFault, ...]:
        length_ns = setting.placement.length_ns or self._scenario.limit_ns
        return schedule(self._specs, self._running.fabric, setting.seed, length_ns, self._used(setting))

    def _used(self, setting: Setting) -> tuple[str, ...]:
        return tuple(setting.placement.links_used(self._running.fabric))

    def _prepare(self, injector: Injector, planned: Sequence[PlannedFault]) -> None:
        """Prepare faults, all at the same time, and wait until each can be made at once."""
        for fault in planned:
            injector.prepare(fault)
        for fault in planned:
            injector.wait_prepared(fault)

    def _fault_run(
        self,
        setting: Setting,
        driver: Driver,
        recorder: Recorder,
        deaths: SwitchDeaths,
        injector: Injector,
        planned: TimedSource,
        measure_ns: int,
    ) -> FaultRun:
        fabric, seed = self._running.fabric, setting.seed
        timed = [planned]
        sequences: list[SequenceSource] = []
        for number, spec in enumerate(self._specs):
            if isinstance(spec, RandomFaults):
                length_ns = setting.placement.length_ns or self._scenario.limit_ns
                drawn = random_faults(fabric, setting.placement.hosts, spec, seed, length_ns, number)
                timed.append(TimedSource(injector, drawn, measure_ns))
            elif isinstance(spec, SequentialFaults):
                trials = trials_of(spec, number, fabric, seed, self._used(setting))
                sequences.append(
                    SequenceSource(
                        injector,
                        trials,
                        spec.settle_ns,
                        driver,
                        recorder,
                        deaths,
                        self._step,
                        self._say,
                        driver if self._only_sequences and not sequences else None,
                    )
                )
        return FaultRun(injector, timed, sequences, deaths)

    def _find_busiest(self, setting: Setting, measure_ns: int) -> str:
        """Return the link that carries most at the end of the warm-up."""
        sleep_until(measure_ns - BUSIEST_NS)
        before = bytes_sent(self._running.network)
        sleep_until(max(measure_ns - BUSIEST_NS // 2, time.monotonic_ns() + BUSIEST_NS // 4))
        after = bytes_sent(self._running.network)
        return busiest_link(self._running.fabric, before, after, self._used(setting))

    def _loop(self, parts: _Parts, measure_ns: int, length_ns: int | None) -> None:
        """Do everything that is due until the workload is over, something is wrong, or time is up."""
        driver, agents = parts.driver, self._scenario.workload.kind in AGENT_KINDS
        deadline: int | None = measure_ns + self._scenario.limit_ns
        if agents:
            deadline = None if length_ns is None else measure_ns + length_ns
        clock = time.monotonic_ns
        while not driver.over and not (agents and deadline is None and parts.faults.over):
            dues = (
                parts.faults.next_ns,
                parts.reaction.next_ns,
                parts.meter.next_ns,
                driver.next_ns,
                deadline,
            )
            due = min((t for t in dues if t is not None), default=clock() + 10**9)
            waiting: list[RemoteAgent | SwitchDeaths | int] = [
                *driver.descriptors(),
                parts.deaths,
                *parts.reaction.descriptors(),
            ]
            ready, _, _ = select.select(waiting, [], [], max(0, due - clock()) / 1e9)
            driver.receive(ready)
            parts.faults.act(clock)
            parts.reaction.act(clock())
            parts.meter.act(clock)
            driver.act(clock)
            if deadline is not None and clock() >= deadline:
                return

    def _evidence(
        self,
        setting: Setting,
        parts: _Parts,
        collected: Collected,
        number: int,
        measure_ns: int,
        end_ns: int,
    ) -> Evidence:
        scenario, recorder = self._scenario, parts.recorder
        failures, notes = (
            [*parts.faults.failures, *collected.failures],
            [*parts.faults.notes, *collected.notes],
        )
        if parts.faults.late_ns > MOST_LATE_NS:
            failures.append(
                f"a fault was made or undone {parts.faults.late_ns / 1e6:.0f} ms after it was due"
            )
        wanted = None
        if self._only_sequences:
            wanted = sum(entry.trials for entry in self._specs if isinstance(entry, SequentialFaults))
        for sequence in parts.faults.sequences:
            if not sequence.over and self.interrupted is None:
                failures.append(f"the workload was over after {sequence.done} of {sequence.wanted} trials")
        if self.interrupted is None and (why := self._running.ended()):
            failures.append(f"{why} during the repetition")
        loads, note = self._loads(recorder.recording.loads, parts.driver.processes)
        flows = setting.placement.params.get("flows", ())
        return Evidence(
            transport=self._transport,
            number=number,
            seed=setting.seed,
            fabric=self._running.fabric,
            hosts=setting.placement.hosts,
            pairs=setting.placement.pairs,
            workload=scenario.workload.model_dump(mode="json"),
            measure_ns=measure_ns,
            end_ns=end_ns,
            length_ns=setting.placement.length_ns,
            series_ns=scenario.measure.series_ns,
            warmup_ns=scenario.live_warmup_ns,
            flow_bytes=tuple(int(flow["message_bytes"]) for flow in flows),
            faults=parts.injector.records(),
            captures=recorder.files,
            recording=recorder.recording,
            event_logs=collected.event_logs,
            samples=collected.samples,
            route_changes=tuple(parts.reaction.changes()),
            loads=loads,
            wanted=wanted,
            rehearsals=sum(sequence.rehearsals for sequence in parts.faults.sequences),
            links=parts.meter.series(measure_ns),
            counters=collected.counters,
            bytes_delivered=collected.bytes_delivered,
            problem=collected.problem,
            failure=collected.failure,
            interrupted=None if self.interrupted is None else reason(self.interrupted),
            notes=(*notes, *note),
            failures=tuple(failures),
            data=setting.directory.name,
            details=collected.details,
        )

    def _loads(self, loads: tuple[Load, ...], processes: int) -> tuple[tuple[Load, ...], tuple[str, ...]]:
        """Return the loads to judge by, and a note if more processes work than there are CPUs."""
        cpus = usable_cpus()
        waits = [load.wait for load in loads if load.wait is not None]
        if processes <= cpus or not waits:
            return loads, ()
        # They are bound to wait for one another. Their throughput is limited once no CPU is ever idle.
        note = f"{processes} hosts share {cpus} CPUs: one waited {max(waits):.0%} of its time for one"
        return tuple(replace(load, wait=None) for load in loads), (note,)


def _note(
    reaction: Reaction,
    deaths: SwitchDeaths,
    course: CourseLog,
    fault: PlannedFault,
    t_ns: int,
    undone: bool,
) -> None:
    reaction.note(fault, t_ns, undone)
    course.note(fault, t_ns, undone)
    if undone and KINDS[fault.kind].place in (Place.SWITCH, Place.PLANE):
        deaths.watch_again()


def drop_captures(out: Path, evidence: Evidence) -> None:
    """Delete the captures of a repetition that was measured."""
    shutil.rmtree(out / f"{evidence.transport.name}-{evidence.number}" / "captures", ignore_errors=True)
