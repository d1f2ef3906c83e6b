"""Rank workloads in virtual time: the jobs of `mrclab.hosts.collectives`, all ranks in this process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import numpy as np

from mrclab.experiments.measure.evidence import Collected, Sample
from mrclab.experiments.run.training import training_alone
from mrclab.experiments.spec.fault_schedule import denylists, faults_met
from mrclab.experiments.virtual.fabric import VirtualSetting
from mrclab.experiments.virtual.nics import VirtualDevice
from mrclab.hosts.collectives.channel import Channel, on_one_host
from mrclab.hosts.collectives.communicator import Times
from mrclab.hosts.collectives.rank import STOPPED, Seat, make_job
from mrclab.hosts.collectives.verbs_channel import VerbsChannel, channel_qps
from mrclab.hosts.rdma.events import Event
from mrclab.hosts.verbs import Context
from mrclab.simulator.clock import PS_PER_NS
from mrclab.simulator.nic import Nic

LEAD_NS = 1000
"""The time from the start command until the ranks start."""


class HostProgram:
    """All ranks of a host. They share the NIC of the host."""

    def __init__(
        self,
        nic: Nic,
        context: Context,
        channels: list[VerbsChannel],
        seats: list[Seat],
        over: Callable[[], None],
    ) -> None:
        """Run the jobs of ``seats`` over the ``channels`` of ``context``. Call ``over`` when all jobs end."""
        self.nic = nic
        self.seats = seats
        self._context = context
        self._channels = channels
        self._over = over
        self._settled = False
        """True if all ranks wait for an event or a time."""
        self._due_ns: int | None = None
        """The earliest time for which a rank waits."""
        nic.programs.append(self)

    def take(self, event: Event) -> None:
        """Pass an event to the channel to which it belongs."""
        self._settled = False
        self._context.hand_out((event,))

    def tick(self, now_ns: int) -> int | None:
        """Let every rank work until it must wait; return the earliest time for which a rank waits."""
        if not self._settled or (self._due_ns is not None and now_ns >= self._due_ns):
            self._due_ns = self._go_on()
        return self._due_ns

    def sample(self, every_ns: int) -> None:
        """Add a sample to each rank's time series, now and at regular times, until all ranks have ended."""
        if any(seat.running is not None for seat in self.seats):
            for seat in self.seats:
                seat.note()
            clock = self.nic.clock
            clock.call_at(clock.now_ps + every_ns * PS_PER_NS, partial(self.sample, every_ns))

    def _go_on(self) -> int | None:
        for channel in self._channels:
            channel.collect()
        due: int | None = None
        working = False
        # A rank may write to the memory of a rank that has already run in this loop. So all ranks run twice.
        for _ in range(2):
            went_on = False
            for seat in self.seats:
                went_on |= seat.advance()
        for seat in self.seats:
            if seat.running is not None:
                working = True
                until_ns = seat.running.wait.until_ns
                if until_ns is not None and (due is None or until_ns < due):
                    due = until_ns
        wrong = any(seat.failure or seat.job.problem for seat in self.seats)
        if not working or wrong:
            self._over()
        self._settled = working and not went_on and not wrong
        return due


class VirtualRanks:
    """The ranks of a workload, each on the NIC of its host."""

    def __init__(self, setting: VirtualSetting) -> None:
        self._setting = setting
        self._network = setting.fabric.network
        self._programs: list[HostProgram] = []
        self._seats: dict[int, Seat] = {}
        self._done: set[int] = set()
        for host, ranks in setting.placement.ranks_by_host().items():
            self._open(host, ranks)
        self._connect()
        self.over = False

    def _open(self, host: str, ranks: list[int]) -> None:
        setting = self._setting
        transport, placement = setting.fabric.transport, setting.placement
        nic = setting.fabric.nic(host, {})
        context = Context(setting.fabric.fabric, host, VirtualDevice(nic))
        qps = channel_qps(transport.kind, transport.channel_options)
        remotes = {rank: VerbsChannel(context, rank, qps) for rank in ranks}
        channels: list[Channel] = list(remotes.values())
        now = VirtualDevice(nic).now
        if len(ranks) > 1:
            shared, _ = on_one_host(remotes, lambda until_ns, others: (), now)
            channels = list(shared)
        seats = []
        params = {**placement.params, "in_process": True}  # another process has no virtual time
        for rank, channel in zip(ranks, channels, strict=True):
            job = make_job(placement.job, params, rank, len(placement.hosts), setting.seed)
            series_ns = setting.scenario.measure.series_ns
            seats.append(Seat(channel, job, rank, len(placement.hosts), series_ns, now))
            self._seats[rank] = seats[-1]
        number = len(self._programs)
        program = HostProgram(nic, context, list(remotes.values()), seats, lambda: self._end(number))
        self._programs.append(program)

    def _connect(self) -> None:
        known: dict[int, dict[int, Any]] = {
            rank: {peer: seat.channel.attributes(peer) for peer in sorted(seat.job.peers())}
            for rank, seat in sorted(self._seats.items())
        }
        for rank, seat in sorted(self._seats.items()):
            for peer in sorted(seat.job.peers()):
                seat.channel.connect(peer, known[peer][rank])

    def _end(self, number: int) -> None:
        """Record that all ranks of a host are done, or that a rank has failed."""
        self._done.add(number)
        seats = self._programs[number].seats
        wrong = any(seat.failure or seat.job.problem for seat in seats)
        if wrong or len(self._done) == len(self._programs):
            self.over = True
            self._network.clock.stop()

    def start(self) -> int:
        """Start all ranks at the same time; return the time (ns) at which the measurement begins."""
        start_ns = self._network.clock.now_ns + LEAD_NS
        measure_ns = start_ns + self._setting.scenario.warmup_ns
        for program in self._programs:
            for seat in program.seats:
                seat.run(Times(start_ns, measure_ns))
            program.nic.wake_now()
            program.sample(self._setting.scenario.measure.series_ns)
        setting = self._setting
        specs = faults_met(setting.scenario.faults, setting.fabric.transport)
        for at_ns, links in denylists(specs, self._network.fabric):
            self._network.clock.call_at((measure_ns + at_ns) * PS_PER_NS, partial(self._deny, links))
        return measure_ns

    def _deny(self, links: Collection[str]) -> None:
        """Let all hosts avoid these links, and use all other links."""
        for program in self._programs:
            for seat in program.seats:
                seat.channel.deny(links)
            program.nic.wake_now()

    def ask_restored(self, timeout_s: float) -> None:
        """Do nothing, because ranks do not report the paths that they use."""

    @property
    def restored(self) -> bool | None:
        """Return True, because ranks do not report paths. So a trial does not wait for paths."""
        return True

    def stop(self) -> None:
        """Stop unfinished jobs. Their sent packets still arrive."""
        for program in self._programs:
            for seat in program.seats:
                seat.end(STOPPED)

    def collect(self) -> Collected:
        """Return the ranks' results. Save the samples of all ranks in one file, ``data.npz``."""
        directory = self._setting.directory
        events = directory / "events"
        events.mkdir(parents=True, exist_ok=True)
        samples: list[Sample] = []
        merged: dict[str, Any] = {}
        counters: dict[str, int] = defaultdict(int)
        for rank, seat in sorted(self._seats.items()):
            samples.append(seat.samples())
            merged |= {f"rank{rank}_{name}": values for name, values in samples[-1].items()}
            seat.channel.save_log(events / f"rank{rank}.jsonl")
            for name, count in seat.channel.counters().items():
                counters[name] += count
        np.savez_compressed(directory / "data.npz", **merged)
        seats = [seat for _, seat in sorted(self._seats.items())]
        # If a rank fails, the others are stopped. So report the failure that is not STOPPED first.
        failures = sorted((seat.failure for seat in seats if seat.failure), key=lambda why: why == STOPPED)
        return Collected(
            samples=tuple(samples),
            counters=dict(counters),
            bytes_delivered=sum(int(s["series_bytes"][-1]) if len(s["series_bytes"]) else 0 for s in samples),
            problem=next((seat.job.problem for seat in seats if seat.job.problem), None),
            failure=next(iter(failures), None),
            details=training_alone(self._setting.placement, self._setting.seed, directory.parent),
        )
