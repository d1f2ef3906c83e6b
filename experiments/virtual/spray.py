"""The spray workload in virtual time: a stream between two simulated NICs, without agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

from mrclab.experiments.live.drivers.spray import DRAIN_TIMEOUT_S, nic_options, stream_details, verdict
from mrclab.experiments.measure.evidence import Collected
from mrclab.experiments.spec.workloads import Spray
from mrclab.experiments.virtual.fabric import VirtualSetting
from mrclab.experiments.virtual.nics import VirtualDevice
from mrclab.hosts.eventlog import LogFile
from mrclab.hosts.mrc import Endpoint
from mrclab.hosts.mrc.events import EvRestored
from mrclab.hosts.mrc.profiles.nic_profiles import NicProfiles
from mrclab.hosts.mrc.profiles.requests import DEFAULT_ID, ProfileRequests, default_profiles
from mrclab.hosts.nic.routes import paths_for
from mrclab.hosts.rdma.events import Event, EvState
from mrclab.hosts.streams.stream import StreamPlan, StreamReceiver, StreamSender
from mrclab.simulator.clock import Clock
from mrclab.simulator.nic import Nic


class StreamProgram:
    """One end of a stream on a NIC, with its event log."""

    def __init__(self, nic: Nic) -> None:
        self.nic = nic
        self.device = VirtualDevice(nic)
        self.endpoint = cast(Endpoint, nic.endpoint)
        self.qpn = self.endpoint.create_qp()
        self.profiles = NicProfiles(self.endpoint)
        default_profiles(self.profiles)
        self.sender: StreamSender | None = None
        self.receiver: StreamReceiver | None = None
        self.log: LogFile | None = None
        nic.programs.append(self)

    def tick(self, now_ns: int) -> int | None:
        """Post the messages that are due; return when the next message is due."""
        if self.sender is None:
            return None
        self.sender.tick()
        return self.sender.next_due()

    def take(self, event: Event) -> None:
        """Write an event to the log, and give this event to the stream."""
        if self.log is not None:
            self.log.write((event,))
        if self.receiver is not None:
            self.receiver.on_event(event)
        if self.sender is not None:
            self.sender.on_event(event)
        if isinstance(event, EvRestored):
            self.nic.clock.stop()

    def bad_evs(self) -> int:
        """Return the number of EVs in the state ASSUMED_BAD."""
        return sum(ev.state is EvState.ASSUMED_BAD for ev in self.endpoint.ev_counters(self.qpn))

    def status(self) -> dict[str, Any]:
        """Return progress and counters in the format of an agent."""
        answer: dict[str, Any] = {
            "counters": asdict(self.endpoint.qp_counters(self.qpn)),
            "drops": asdict(self.endpoint.drops),
        }
        if self.sender is not None:
            sender = self.sender
            answer |= {
                "posted": sender.posted,
                "completed": sender.completed,
                "drained": sender.drained,
                "failed": sender.failed,
            }
        if self.receiver is not None:
            receiver = self.receiver
            answer |= {
                "received": receiver.received,
                "bytes_delivered": receiver.bytes_delivered,
                "problem": receiver.problem,
            }
        return answer


class VirtualSpray:
    """Two NICs and the stream between them."""

    over = False

    def __init__(self, setting: VirtualSetting) -> None:
        workload = setting.scenario.workload
        assert isinstance(workload, Spray)
        self._setting = setting
        self._workload = workload
        self._clock: Clock = setting.fabric.network.clock
        fabric, hosts = setting.fabric, setting.placement.hosts
        options = nic_options(workload)
        nics = [fabric.nic(host, options) for host in hosts[:2]]
        self._sender, self._receiver = (StreamProgram(nic) for nic in nics)
        plan = StreamPlan(workload.message_bytes, workload.rate_bps, setting.seed)
        self._receiver.receiver = StreamReceiver(self._receiver.device, plan, self._receiver.qpn)
        remote = self._receiver.receiver.remote
        self._sender.sender = StreamSender(self._sender.device, self._sender.qpn, remote, plan)
        ends = (self._sender, self._receiver)
        for near, far in (ends, ends[::-1]):
            attributes = far.endpoint.local_attributes(far.qpn)
            paths = paths_for(near.endpoint, fabric.fabric, near.nic.name, far.nic.name)
            cc = DEFAULT_ID if near.profiles.ccs else None
            near.profiles.connect(near.qpn, attributes, paths, DEFAULT_ID, cc)
        events = setting.directory / "events"
        events.mkdir(parents=True, exist_ok=True)
        self._logs = {}
        for end in ends:
            self._logs[end.nic.name] = events / f"{end.nic.name}.jsonl"
            end.log = LogFile(self._logs[end.nic.name], end.nic.name, self._clock.now_ns)
        self._asked_until_ns: int | None = None

    def start(self) -> int:
        """Start the stream; return the time (ns) at which the warm-up ends and the measurement begins."""
        sender = self._sender.sender
        assert sender is not None
        sender.start()
        self._sender.nic.wake_now()
        return self._clock.now_ns + self._setting.scenario.warmup_ns

    def change_profile(self, host: str, request: dict[str, Any]) -> Mapping[str, Any]:
        """Send a request about profiles to a host's NIC, and return its answer."""
        end = self._sender if host == self._sender.nic.name else self._receiver
        return ProfileRequests(end.profiles, host, self._now_ns).carry_out(request)

    def _now_ns(self) -> int:
        return self._clock.now_ns

    def ask_restored(self, timeout_s: float) -> None:
        """Start a wait that ends after ``timeout_s``, or when the sender has no EV marked as bad."""
        self._asked_until_ns = self._clock.now_ns + round(timeout_s * 1e9)
        self._clock.call_at(self._asked_until_ns * 1000, self._clock.stop)

    @property
    def restored(self) -> bool | None:
        """Return whether no EV is marked as bad; None while `ask_restored` still waits."""
        if self._asked_until_ns is None:
            return None
        holds = not self._sender.bad_evs()
        return holds if holds or self._clock.now_ns >= self._asked_until_ns else None

    def stop(self) -> None:
        """Stop sending, and wait until the sent packets have arrived."""
        sender, clock = self._sender.sender, self._clock
        assert sender is not None
        sender.stop()
        self._sender.nic.wake_now()
        end_ps = clock.now_ps + round(DRAIN_TIMEOUT_S * 1e12)
        step_ps = 10**9
        while not sender.drained and clock.now_ps < end_ps:
            clock.run(min(end_ps, clock.now_ps + step_ps))
        for end in (self._sender, self._receiver):
            if end.log is not None:
                end.log.close()

    def collect(self) -> Collected:
        """Return counters, the delivered bytes, errors and event logs."""
        sender, receiver = self._sender.status(), self._receiver.status()
        problem, failure = verdict(sender, receiver)
        return Collected(
            counters={key: int(value) for key, value in sender["counters"].items()},
            bytes_delivered=int(receiver["bytes_delivered"]),
            problem=problem,
            failure=failure,
            event_logs=dict(self._logs),
            details={
                "endpoints": {"sender": sender, "receiver": receiver},
                "stream": stream_details(self._workload, self._workload.rate_bps),
            },
        )
