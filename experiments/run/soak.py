"""The soak: streams in all directions while links and ports break at random, and not a byte may be missing.

Each stream numbers and hashes its messages and knows what memory must hold (hosts.streams.stream). At the end
every message must have completed once at both ends, in order; the responders must have placed exactly as many
bytes as were posted, so none twice; and the receivers' whole memory must be as the messages left it.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import IO, Any, cast

from controller.fault_kinds import Direction, Fault
from controller.pipeline import shipped_pipeline
from experiments.report.result import save_result
from experiments.run.system import describe_system
from experiments.run.trials import let_pass
from experiments.spec.fault_schedule import PlannedFault
from experiments.spec.soak_plan import SoakPlan, Stream, random_faults
from hosts.remote import AgentError, RemoteAgent
from testbed.lab import Lab
from topologies import Fabric, fabric_text

SCHEMA = "mrclab.soak/1"
SAMPLE_S = 5.0
STUCK_S = 180.0
"""Generous: a machine that is busy with something else may starve a soak for long."""
ANSWER_S = 180.0
DRAIN_S = 120.0
LOG_BYTES = 32 << 20
"""Kept of each agent's event log."""
GROWTH_BYTES = 8 << 20
"""An agent whose memory grows by more than this over the last two thirds of a run is said to leak."""
GROWTH_SAMPLES = 12
NEVER_ENDING = 25
MIB = 1 << 20

Say = Callable[[str], None]


class SoakFailedError(Exception):
    """Something that must not happen did: what and where."""


@dataclass
class Memory:
    """Resident bytes of a process, sampled: (seconds since the start, bytes)."""

    samples: list[tuple[float, int]] = field(default_factory=list)

    def steady(self) -> list[tuple[float, int]]:
        """The samples after the first third, in which a process gets warm."""
        if not self.samples:
            return []
        end = self.samples[-1][0]
        return [sample for sample in self.samples if sample[0] >= end / 3]

    @property
    def growth_bytes(self) -> int | None:
        """By how much the regression line rises over the steady part; None with too few samples."""
        steady = self.steady()
        if len(steady) < GROWTH_SAMPLES:
            return None
        n = len(steady)
        mean_t = sum(t for t, _ in steady) / n
        mean_b = sum(b for _, b in steady) / n
        spread = sum((t - mean_t) ** 2 for t, _ in steady)
        slope = sum((t - mean_t) * (b - mean_b) for t, b in steady) / spread
        return round(slope * (steady[-1][0] - steady[0][0]))

    def to_dict(self) -> dict[str, Any]:
        """As it goes into result.json: at most 200 samples, spread evenly."""
        step = max(1, len(self.samples) // 200)
        return {
            "first_bytes": self.samples[0][1],
            "last_bytes": self.samples[-1][1],
            "max_bytes": max(b for _, b in self.samples),
            "growth_bytes": self.growth_bytes,
            "samples": [[round(t, 1), b] for t, b in self.samples[::step]],
        }


@dataclass
class Watched:
    """A stream and what both ends last said of it."""

    stream: Stream
    sender: Mapping[str, Any] = field(default_factory=dict)
    receiver: Mapping[str, Any] = field(default_factory=dict)
    progressed_s: float = 0.0

    def check_end(self) -> str | None:
        """What is not as it must be after everything has drained, or None."""
        sent, got = self.sender, self.receiver
        if not sent["drained"] or sent["posted"] != sent["completed"]:
            return f"{sent['completed']} of {sent['posted']} messages completed at the sender"
        if sent["posted"] != got["received"]:
            return f"{got['received']} of {sent['posted']} messages arrived"
        if sent["posted_bytes"] != got["bytes_delivered"]:
            return f"{got['bytes_delivered']} of {sent['posted_bytes']} bytes arrived"
        placed = got["counters"]["bytes_placed"]
        if placed != sent["posted_bytes"]:
            return f"{placed} bytes were placed for {sent['posted_bytes']} that were sent"
        return None

    def to_dict(self) -> dict[str, Any]:
        """As it goes into result.json."""
        return {
            "stream": self.stream.name,
            "messages": self.sender.get("posted", 0),
            "bytes": self.sender.get("posted_bytes", 0),
            "delivered_messages": self.receiver.get("received", 0),
            "delivered_bytes": self.receiver.get("bytes_delivered", 0),
            "sender": dict(self.sender.get("counters", {})),
            "receiver": dict(self.receiver.get("counters", {})),
        }


class FaultMaker:
    """Makes planned faults and mends them, and writes down each with the moments of both."""

    def __init__(self, lab: Lab, log: IO[str]) -> None:
        self._lab = lab
        self._log = log
        self.made: Counter[str] = Counter()
        self._active: dict[str, tuple[PlannedFault, int]] = {}

    def make(self, fault: PlannedFault) -> None:
        """Breaks it."""
        before = time.monotonic_ns()
        way = cast(Direction, fault.direction)
        self._lab.faults.apply(Fault(fault.kind, fault.place, way, fault.params.get("ratio", 1.0)))
        self._active[fault.place] = (fault, before)
        self.made[fault.kind] += 1

    def mend(self, fault: PlannedFault) -> None:
        """Mends it, and writes it down."""
        self._lab.faults.undo(fault.place)
        _, before = self._active.pop(fault.place)
        entry = {
            **{key: value for key, value in asdict(fault).items() if key != "entry"},
            "t_broken_ns": before,
            "t_mended_ns": time.monotonic_ns(),
        }
        self._log.write(json.dumps(entry) + "\n")
        self._log.flush()

    def mend_all(self) -> None:
        """Mends whatever is broken."""
        for fault, _ in list(self._active.values()):
            self.mend(fault)


class Soak:
    """One run of a soak on a lab that is up."""

    def __init__(self, lab: Lab, plan: SoakPlan, out: Path, say: Say) -> None:
        self._lab = lab
        self._plan = plan
        self._out = out
        self._say = say
        self._hosts = plan.host_names(lab.fabric)
        self._agents: dict[str, RemoteAgent] = {}
        self.watched = [Watched(stream) for stream in plan.streams(lab.fabric)]
        self.memory: dict[str, Memory] = {}
        self.faults: Counter[str] = Counter()
        self.drops: dict[str, Counter[str]] = {host: Counter() for host in self._hosts}
        """Frames that each NIC took in and refused, most for a bad ICRC, and those its socket lost."""
        self.log_events_lost = 0
        self.duration_s = 0.0
        self._started = 0.0
        self._said_s = 0.0

    def run(self) -> None:
        """Runs it to its end. Raises SoakFailedError with what went wrong."""
        with contextlib.ExitStack() as stack:
            errors = stack.enter_context(open(self._out / "logs" / "agents.log", "ab"))
            for host in self._hosts:
                spawn = partial(self._lab.network.spawn, host)
                self._agents[host] = stack.enter_context(RemoteAgent(host, spawn, stderr=errors))
            log = stack.enter_context(open(self._out / "faults.jsonl", "w", encoding="utf-8"))
            try:
                self._connect()
                self._traffic(FaultMaker(self._lab, log))
                self._end()
            except AgentError as error:
                raise SoakFailedError(str(error)) from None

    def _connect(self) -> None:
        text = fabric_text(self._lab.fabric)
        peers = len(self._hosts) - 1
        config = {
            "mtu_bytes": self._plan.payload_bytes,
            "timestamps": True,
            "exponential_retries": NEVER_ENDING,
        }
        for number, agent in enumerate(self._agents.values()):
            agent.send(
                "open",
                topology=self._lab.fabric.name,
                topology_yaml=text,
                host=agent.host,
                config=config,
                seed=self._plan.seed + number,
                cpu=None,
                realtime=False,
                qps=peers * self._plan.qps,
            )
        attributes = {host: agent.receive()["qps"] for host, agent in self._agents.items()}
        for host, agent in self._agents.items():
            path = (self._out / f"{host}.jsonl").resolve()
            agent.call("log", path=str(path), completions=False, keep_bytes=LOG_BYTES)
        for stream in (watched.stream for watched in self.watched):
            plan, (near, far) = asdict(stream.plan), stream.qps
            remote = self._agents[stream.dst].call("receive", qp=far, plan=plan)
            self._agents[stream.src].call("send", qp=near, plan=plan, remote=remote)
        for stream in (watched.stream for watched in self.watched):
            near, far = stream.qps
            peer = {"peer": stream.dst, "attributes": attributes[stream.dst][far]}
            self._agents[stream.src].call("connect", qp=near, **peer)

    def _traffic(self, maker: FaultMaker) -> None:
        for agent in self._agents.values():
            agent.call("start")
        self._started = time.monotonic()
        length_ns = self._plan.duration_ns
        planned = random_faults(self._lab.fabric, self._hosts, self._plan.faults, self._plan.seed, length_ns)
        begin = time.monotonic_ns()
        broken: list[tuple[int, int, PlannedFault]] = []
        coming = next(planned, None)
        sample_ns = 0
        try:
            while True:
                mend_ns = broken[0][0] if broken else length_ns
                make_ns = coming.at_ns if coming is not None else length_ns
                due_ns = min(mend_ns, make_ns, sample_ns, length_ns)
                let_pass(max(0, begin + due_ns - time.monotonic_ns()))
                if broken and mend_ns == due_ns:
                    maker.mend(heapq.heappop(broken)[2])
                elif coming is not None and make_ns == due_ns:
                    maker.make(coming)
                    assert coming.until_ns is not None
                    heapq.heappush(broken, (coming.until_ns, maker.made.total(), coming))
                    coming = next(planned, None)
                elif due_ns >= length_ns:
                    break
                else:
                    self._sample(maker.made)
                    sample_ns = max(sample_ns + round(SAMPLE_S * 1e9), time.monotonic_ns() - begin)
        finally:
            maker.mend_all()
            self.faults = maker.made
            self.duration_s = time.monotonic() - self._started

    def _sample(self, made: Counter[str]) -> None:
        """Looks at every stream and at every agent's memory."""
        now_s = time.monotonic() - self._started
        self._ask_states(now_s)
        pids = {host: agent.pid for host, agent in self._agents.items()}
        pids["controller"] = os.getpid()
        for number, pid in enumerate(self._lab.target.pids()):
            pids[f"switches {number}"] = pid
        for name, pid in pids.items():
            self.memory.setdefault(name, Memory()).samples.append((now_s, _resident_bytes(pid)))
        for watched in self.watched:
            if not watched.sender["drained"] and now_s - watched.progressed_s > STUCK_S:
                raise SoakFailedError(f"{watched.stream.name}: nothing completed for {STUCK_S:.0f} s")
        if now_s - self._said_s >= 60 or not self._said_s:
            self._said_s = max(now_s, 1e-9)
            delivered = sum(w.receiver["bytes_delivered"] for w in self.watched)
            rss = max(m.samples[-1][1] for h, m in self.memory.items() if h in self._agents)
            self._say(
                f"{now_s:6.0f} s: {delivered / 1e6:,.0f} MB checked, {made.total()} faults, "
                f"largest agent {rss / MIB:.0f} MiB"
            )

    def _ask_states(self, now_s: float) -> None:
        for watched in self.watched:
            (near, far), before = watched.stream.qps, watched.sender.get("completed")
            ends = []
            for host, qp in ((watched.stream.src, near), (watched.stream.dst, far)):
                self._agents[host].send("status", qp=qp)
                ends.append(self._agents[host].receive(ANSWER_S))
                self.drops[host].update(socket=ends[-1]["socket_drops"])
                self.drops[host]["frames"] = ends[-1]["frame_drops"]
            watched.sender, watched.receiver = ends
            if watched.sender["completed"] != before:
                watched.progressed_s = now_s
            for problem in (watched.sender["failed"], watched.receiver["problem"]):
                if problem is not None:
                    raise SoakFailedError(f"{watched.stream.name}: {problem}")

    def _end(self) -> None:
        for agent in self._agents.values():
            agent.call("stop")
        for agent in self._agents.values():
            agent.send("wait", what="drained", timeout_s=DRAIN_S)
        drained = {host: agent.receive(DRAIN_S + 30)["holds"] for host, agent in self._agents.items()}
        self._ask_states(time.monotonic() - self._started)
        for watched in self.watched:
            problem = watched.check_end()
            if problem is not None:
                raise SoakFailedError(f"{watched.stream.name}: {problem}")
        if not all(drained.values()):
            raise SoakFailedError(f"not drained: {', '.join(h for h, done in drained.items() if not done)}")
        for host, agent in self._agents.items():
            for number, problem in enumerate(agent.call("verify")["problems"]):
                if problem is not None:
                    raise SoakFailedError(f"{host} qp {number}: {problem}")
        for agent in self._agents.values():
            self.log_events_lost += agent.call("end_log")["lost"]
        for host in self._hosts:
            growth = self.memory[host].growth_bytes
            if growth is not None and growth > GROWTH_BYTES:
                raise SoakFailedError(
                    f"{host}: its memory grew by {growth / MIB:.1f} MiB while nothing changed"
                )


def _resident_bytes(pid: int) -> int:
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def run_soak(
    plan: SoakPlan, fabric: Fabric, target: str, out: Path, *, arguments: Sequence[str], say: Say
) -> dict[str, Any]:
    """Runs a soak and returns the contents of the result.json that it leaves in ``out``.

    ``arguments`` are those of ``mrclab soak`` that chose the plan; ``say`` is told what is going on.
    """
    plan.streams(fabric)
    logs = out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    verdict = "ok"
    with Lab.up(fabric, target, logs, say=say) as lab:
        soak = Soak(lab, plan, out, say)
        try:
            soak.run()
        except SoakFailedError as error:
            verdict = str(error)
        target = lab.target.name
    result = {
        "schema": SCHEMA,
        "soak": plan.name,
        "parameters": plan.to_dict(),
        "target": target,
        "topology": fabric.name,
        "seed": plan.seed,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        "system": describe_system(shipped_pipeline().json),
        "integrity": verdict,
        "reproduce": shlex.join(["mrclab", "soak", *arguments]),
        "duration_s": round(soak.duration_s, 3),
        "faults": dict(sorted(soak.faults.items())),
        "totals": _totals(soak.watched),
        "streams": [watched.to_dict() for watched in soak.watched],
        "memory": {name: memory.to_dict() for name, memory in soak.memory.items()},
        "drops": {host: dict(drops) for host, drops in soak.drops.items()},
        "log_events_lost": soak.log_events_lost,
    }
    save_result(out, result)
    return result


def soak_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) that the result.json of every soak fulfils."""
    text = files("experiments.spec").joinpath("schema", "soak.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def _totals(streams: Sequence[Watched]) -> dict[str, int]:
    sent = [watched.sender.get("counters", {}) for watched in streams]
    got = [watched.receiver.get("counters", {}) for watched in streams]

    def total(ends: Sequence[Mapping[str, int]], key: str) -> int:
        return sum(end.get(key, 0) for end in ends)

    return {
        "messages": sum(w.sender.get("posted", 0) for w in streams),
        "bytes": sum(w.sender.get("posted_bytes", 0) for w in streams),
        "delivered_messages": sum(w.receiver.get("received", 0) for w in streams),
        "delivered_bytes": sum(w.receiver.get("bytes_delivered", 0) for w in streams),
        "placed_bytes": total(got, "bytes_placed"),
        "packets_sent": total(sent, "sent"),
        "packets_retransmitted": total(sent, "retransmitted"),
        "packets_lost": total(sent, "lost"),
        "losses_spurious": total(sent, "spurious"),
        "duplicates_received": total(got, "duplicates"),
        "trims_received": total(got, "trims_received"),
        "sacks_sent": total(got, "sacks_sent"),
        "nacks_sent": total(got, "nacks_sent"),
    }
