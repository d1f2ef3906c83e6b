"""One repetition on a running fabric: the workload, its faults, and the evidence of both.

A repetition may be made a second time if a process started too slowly or the machine was busy.
"""

from __future__ import annotations

import contextlib
import select
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from mrclab.experiments.live.captures.recorder import CaptureSource, Recorder, tcpdump_at
from mrclab.experiments.live.captures.tap import TapSource
from mrclab.experiments.live.disturbances import Strangers, SwitchDeaths, by_switch
from mrclab.experiments.live.drivers.driver import Driver, Setting, sleep_until
from mrclab.experiments.live.drivers.mesh import MeshDriver
from mrclab.experiments.live.drivers.programs import ProgramDriver
from mrclab.experiments.live.drivers.ranks import RankDriver
from mrclab.experiments.live.drivers.spray import SprayDriver
from mrclab.experiments.live.fabrics import Reaction
from mrclab.experiments.measure.evidence import Collected, Evidence
from mrclab.experiments.measure.faults import save_faults
from mrclab.experiments.measure.load import Load
from mrclab.experiments.measure.recording import measure_offset
from mrclab.experiments.measure.repetition import Repetition
from mrclab.experiments.run.course import Course
from mrclab.experiments.run.fault_run import FaultRun, TimedSource
from mrclab.experiments.run.injection import Injector
from mrclab.experiments.run.link_bytes import LinkMeter, busiest_link, bytes_sent
from mrclab.experiments.run.outcome import disturbed, in_place_of
from mrclab.experiments.run.training import COURSE, TRANSFORMER, CourseLog
from mrclab.experiments.spec.fault_schedule import PlannedFault
from mrclab.experiments.spec.faults import BUSIEST_NS, RandomFaults
from mrclab.experiments.spec.model import Scenario
from mrclab.experiments.spec.placement import metered
from mrclab.experiments.spec.workloads import AGENT_KINDS
from mrclab.faults.kinds import KINDS, Fault, Place
from mrclab.hosts.transports.table import Transport
from mrclab.hosts.worker import AgentError, RemoteAgent
from mrclab.linux.errors import MrclabError, SwitchError, reason
from mrclab.linux.life.signals import Ended
from mrclab.linux.scheduling import usable_cpus
from mrclab.p4src.targets import capabilities_of
from mrclab.testbed.running import RunningFabric, Say


class StartError(MrclabError, RuntimeError):
    """A process of the workload did not start in time, or ended before anything was measured."""


class Attempts:
    """Make repetitions. If a repetition does not start or is disturbed, make a second attempt.

    ``make`` runs and measures the repetition with the given number. For all repetitions together, at most
    ``left`` second attempts are made. The function ``spent`` is called before each second attempt. ``say``
    gets a message if a first attempt did not start.
    """

    def __init__(
        self,
        make: Callable[[int], Repetition],
        left: int,
        say: Callable[[str], None],
        spent: Callable[[], None],
    ) -> None:
        self._make = make
        self._left = left
        self._say = say
        self._spent = spent

    def repetition(self, number: int, *, trials: bool) -> Repetition:
        """Make a repetition, and make it again if the machine disturbed it.

        A repetition with ``trials`` is not made again, because disturbed trials are repeated one by one. If
        there are two attempts, the result has both. Raise StartError if processes do not start. Also raise
        the errors of ``make``.
        """
        found = self._started(number)
        if trials or not self._left or not disturbed(found):
            return found
        self._spend()
        second = self._started(number)
        return found if second.interrupted is not None else in_place_of(found, second)

    def _started(self, number: int) -> Repetition:
        """Make a repetition; try again if its processes do not start."""
        try:
            return self._make(number)
        except StartError as error:
            if not self._left:
                raise
            again = f"repetition {number} began again: {error}"
        self._say(again)
        self._spend()
        found = self._make(number)
        return replace(found, validity=replace(found.validity, notes=(*found.validity.notes, again)))

    def _spend(self) -> None:
        self._left -= 1
        self._spent()


# Faults that are due at the start of the measurement are made this long before the start. So they are active
# when the measurement begins.
FIRST_FAULTS_NS = 100_000_000

DRIVERS: dict[str, Callable[[Setting], Driver]] = {
    "spray": SprayDriver,
    "mesh": MeshDriver,
    "program": ProgramDriver,
}
Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Parts:
    course: Course
    driver: Driver
    recorder: Recorder
    injector: Injector
    reaction: Reaction
    faults: FaultRun
    meter: LinkMeter


class LiveWorld:
    """The live `mrclab.experiments.run.course.World`: the workload's processes, and CLOCK_MONOTONIC."""

    def __init__(self, driver: Driver, routes: Reaction, marks: Recorder, deaths: SwitchDeaths) -> None:
        self.workload = self.pace = driver
        self.routes = routes
        self.marks = marks
        self.deaths = deaths
        self.clock = time.monotonic_ns
        self.change_profile = driver.change_profile if isinstance(driver, SprayDriver) else None

    @property
    def next_ns(self) -> int | None:
        """Return the time at which the driver must act next, or None."""
        return self.workload.next_ns

    def wait(self, until_ns: int, paths: bool) -> None:
        """Wait for a message, the end of a switch, a change of routes, or ``until_ns``. Ignore ``paths``."""
        waiting: list[RemoteAgent | SwitchDeaths | int] = [
            *self.workload.descriptors(),
            self.deaths,
            *self.routes.descriptors(),
        ]
        ready, _, _ = select.select(waiting, [], [], max(0, until_ns - self.clock()) / 1e9)
        self.workload.receive(ready)

    def act(self) -> None:
        """Let the driver perform the actions that are due."""
        self.workload.act(self.clock)


class RepetitionRunner:
    """Run the repetitions of one transport, one after another."""

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
        """The exception that ended the last repetition early, or None."""

    def run(self, number: int) -> Evidence:
        """Run a repetition and return its evidence.

        Raise StartError, AgentError, CaptureError and SwitchError. If an error or a signal ends the
        measurement early, return the evidence up to then, and put the cause into ``interrupted``.
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
            driver = stack.enter_context(self._started(setting))
            stack.enter_context(self._lossy_links())
            recorder = Recorder(
                directory,
                self._sources(setting),
                self._watched(driver),
                self._looked_at(driver),
                driver.beats,
            )
            changes: tuple[str, ...] = ()
            with (
                recorder,
                SwitchDeaths(self._running, recorder) as deaths,
                Strangers(self._running) as strangers,
            ):
                with driver.priority():
                    parts, measure_ns, end_ns = self._carry_out(setting, driver, recorder, deaths)
                with self._interruptible():
                    driver.stop()
                    parts.faults.look_back()
                    changes = strangers.changes(record.kind for record in parts.injector.records())
            collected = self._collected(driver, directory)
        save_faults(directory / "faults.json", parts.injector.records())
        found = self._evidence(setting, parts, collected, number, (measure_ns, end_ns))
        return replace(found, failures=(*found.failures, *changes))

    @contextlib.contextmanager
    def _started(self, setting: Setting) -> Iterator[Driver]:
        """Start and connect the workload's processes, and yield their driver. Raise StartError."""
        driver: Driver = DRIVERS.get(setting.scenario.workload.kind, RankDriver)(setting)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(driver)
            except AgentError as error:
                # A StartError causes a second start. If a switch has ended, the second start would fail, too.
                if why := self._running.ended():
                    raise SwitchError(why) from error
                raise StartError(str(error)) from error
            yield driver

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Store an exception of the ``with`` block in `interrupted`, and continue, to keep the evidence."""
        try:
            yield
        except (Exception, KeyboardInterrupt, Ended) as error:
            # An ended switch is the cause of other errors, so report the switch instead of the caught error.
            why = self._running.ended()
            found = SwitchError(why) if why and isinstance(error, Exception) else error
            self.interrupted = self.interrupted or found

    def _collected(self, driver: Driver, directory: Path) -> Collected:
        """Return the evidence of the workload's processes. After an early end some parts may be missing."""
        if self.interrupted is None:
            return driver.collect()
        try:
            return driver.collect()
        except Exception as error:
            logs = {path.stem: path for path in (directory / "events").glob("*.jsonl")}
            return Collected(event_logs=logs, failures=(f"what the hosts counted is lost: {error}",))

    def _sources(self, setting: Setting) -> dict[str, CaptureSource]:
        """Return the captures of all hosts of the workload. Capture on request, or if faults are measured.

        If the kernel forwards frames, the captures are taps, otherwise tcpdump processes. A control has no
        faults. It is captured, too, so that captures cost all transports the same CPU time.
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
        """Return the processes whose waiting time for a CPU is measured."""
        pids = dict(driver.pids)
        forwards = not capabilities_of(self._running.target_name).forwards_in_kernel
        if self._scenario.workload.kind in AGENT_KINDS and forwards:
            # BMv2's processes forward frames, so it matters how long these processes wait for a CPU.
            pids |= by_switch(self._running)
        return pids

    def _looked_at(self, driver: Driver) -> dict[str, int]:
        """Return the processes that must be watched from outside for stops.

        Endpoints that send beats (regular reports) are left out, because beats report stops. If the kernel
        forwards frames, the target's process is left out, too. This process only writes table entries, and
        the times of each write are recorded.
        """
        pids = {} if driver.rehearses else dict(driver.pids)
        if capabilities_of(self._running.target_name).forwards_in_kernel:
            return pids
        return {**pids, **by_switch(self._running)}

    @contextlib.contextmanager
    def _lossy_links(self) -> Iterator[None]:
        """Let every NIC drop a share of its received packets, if the transport has a ``loss``."""
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
        """Run the workload with its faults. Return its parts, and when the measurement began and ended."""
        fabric = self._running.fabric
        course = Course(self._scenario, self._transport, fabric, setting.placement, setting.seed)
        reaction = Reaction(self._running, self._transport, setting.seed)
        trains = setting.placement.job == TRANSFORMER
        log = CourseLog(setting.directory / COURSE if trains else None)
        injector = Injector(self._running.faults, partial(_note, reaction, deaths, log))
        planned = tuple(course.planned())
        self._prepare(injector, planned)
        timed = TimedSource(injector, planned, measure_ns := driver.start())
        log.begin(measure_ns)
        agents = self._scenario.workload.kind in AGENT_KINDS
        if course.needs_busiest:
            injector.busiest = self._find_busiest(course.links_used, measure_ns)
            self._prepare(injector, planned)
        sleep_until(measure_ns - FIRST_FAULTS_NS)
        timed.make_first()
        sleep_until(measure_ns)
        # Ranks begin to measure at a fixed time. Agents begin now, because the steps above may have taken a
        # long time.
        if agents:
            measure_ns = timed.start_ns = time.monotonic_ns()
        world = LiveWorld(driver, reaction, recorder, deaths)
        faults = course.faults(world, injector, timed, self._step, self._say)
        links = metered(fabric, self._scenario.measure.links)
        meter = LinkMeter(fabric, links, partial(bytes_sent, self._running.network), measure_ns)
        parts = _Parts(course, driver, recorder, injector, reaction, faults, meter)
        if not course.only_sequences:
            recorder.mark()
        with self._interruptible():
            course.run(world, faults, meter, measure_ns)
        end_ns = time.monotonic_ns()
        if not course.only_sequences or self.interrupted is not None:
            recorder.mark()
        with self._interruptible():
            injector.undo_all()
            reaction.undo_all()
        return parts, measure_ns, end_ns

    def _prepare(self, injector: Injector, planned: Sequence[PlannedFault]) -> None:
        """Prepare all faults in parallel, and wait until each can be made without delay."""
        for fault in planned:
            injector.prepare(fault)
        for fault in planned:
            injector.wait_prepared(fault)

    def _find_busiest(self, used: Sequence[str], measure_ns: int) -> str:
        """Return the link that carries the most bytes at the end of the warm-up."""
        sleep_until(measure_ns - BUSIEST_NS)
        before = bytes_sent(self._running.network)
        sleep_until(max(measure_ns - BUSIEST_NS // 2, time.monotonic_ns() + BUSIEST_NS // 4))
        after = bytes_sent(self._running.network)
        return busiest_link(self._running.fabric, before, after, used)

    def _evidence(
        self, setting: Setting, parts: _Parts, collected: Collected, number: int, span: tuple[int, int]
    ) -> Evidence:
        scenario, recorder = self._scenario, parts.recorder
        interrupted = None if self.interrupted is None else reason(self.interrupted)
        changes = parts.reaction.changes()
        found = parts.course.evidence(
            number, setting.directory, span, parts.faults, collected, parts.meter, changes, interrupted
        )
        ended = self._running.ended() if interrupted is None else None
        loads, notes = self._loads(recorder.recording.loads, parts.driver.processes)
        if scenario.slower > 1:
            notes = (f"all runs {scenario.slower:.3g} times slower than written (docs/scenarios.md)", *notes)
        return replace(
            found,
            warmup_ns=scenario.live_warmup_ns,
            captures=recorder.files,
            recording=recorder.recording,
            loads=loads,
            notes=(*found.notes, *notes),
            failures=(*found.failures, *([f"{ended} during the repetition"] if ended else [])),
        )

    def _loads(self, loads: tuple[Load, ...], processes: int) -> tuple[tuple[Load, ...], tuple[str, ...]]:
        """Return the loads for the validity check, and a note if there are more processes than CPUs."""
        cpus = usable_cpus()
        waits = [load.wait for load in loads if load.wait is not None]
        if processes <= cpus or not waits:
            return loads, ()
        # With fewer CPUs than processes, waiting is normal, so it must not make the run invalid.
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
    """Delete the captures of a repetition that has been measured."""
    shutil.rmtree(out / f"{evidence.transport.name}-{evidence.number}" / "captures", ignore_errors=True)
