"""The link-kill experiment: a steady spray of writes, a link cut under it, healed, another cut, and so on.

Evidence only: the run leaves captures, event logs and the faults' stamps in its directory, and what they mean
is found out afterwards from those files (experiments.report.examine).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from controller.pipeline import shipped_pipeline
from experiments.measure.clock import measure_offset
from experiments.measure.faults import save_faults
from experiments.measure.validity import SWITCH_PREFIX, busiest_share, take_snapshot
from experiments.report.examine import examine
from experiments.report.page.write import write_report
from experiments.report.plots import draw_all
from experiments.report.result import Run, result_of, save_result
from experiments.report.spread_plots import draw_spreads
from experiments.run.recorder import RECEIVER, SENDER, Listens, Recorder, ear_at
from experiments.run.system import describe_system
from experiments.run.tap import TapEar
from experiments.run.trials import Trials, let_pass
from experiments.spec.scenario import Scenario, Workload
from hosts.remote import RemoteAgent
from hosts.streams.stream import StreamPlan
from linux.process_deaths import DeathWatch
from switches.bmv2.target import Bmv2Target
from testbed.lab import Lab
from topologies import Fabric, fabric_text

DRAIN_TIMEOUT_S = 10.0
SACK_THRESHOLD_BYTES = 4096  # four small packets: each counts as 1024 [SPEC 7.5.2]
# The rate is settled on by so many looks at so much of the stream, each time from what the last one found.
LOOKS, LOOK_NS = 3, 150_000_000
LEAST_SHARE = 0.1  # of the scenario's rate: less is not worth running, and validity will say so

Step = Callable[[int], None]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the endpoints said at the end of the stream."""

    sender: Mapping[str, Any]
    receiver: Mapping[str, Any]
    rate_bps: int
    notes: tuple[str, ...]
    failures: tuple[str, ...] = ()

    @property
    def integrity(self) -> str:
        """``ok``, or what broke first."""
        if self.receiver["problem"] is not None:
            return str(self.receiver["problem"])
        if self.sender["failed"] is not None:
            return f"the sender gave up: {self.sender['failed']}"
        if not self.sender["drained"] or self.sender["posted"] != self.receiver["received"]:
            return f"{self.receiver['received']} of {self.sender['posted']} messages arrived"
        return "ok"


def run_link_kill(
    scenario: Scenario,
    fabric: Fabric,
    target: str,
    out: Path,
    *,
    say: Say,
    step: Step,
    command: Sequence[str] = (),
) -> dict[str, Any]:
    """Runs the whole experiment and returns the contents of the result.json it leaves in ``out``.

    ``say`` is told what is going on, ``step`` how many trials are done; ``command`` asks for the same again.
    """
    scenario.check_against(fabric)
    src, dst = scenario.endpoints(fabric)
    logs = out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with Lab.up(fabric, target, logs, say=say) as lab:
        target = lab.target.name
        outcome = _measure(lab, scenario, src, dst, out, step)
    say("reading the captures")
    evidence = examine(
        out,
        fabric,
        src,
        dst,
        integrity=outcome.integrity,
        notes=outcome.notes,
        failures=outcome.failures,
        wanted=scenario.trials,
    )
    extra: dict[str, Any] = {
        "endpoints": {"sender": outcome.sender, "receiver": outcome.receiver},
        "stream": _stream(scenario.workload, outcome.rate_bps),
    }
    run = Run(
        scenario=scenario,
        target=target,
        topology=fabric.name,
        trials=evidence.trials,
        set_aside=evidence.set_aside,
        validity=evidence.validity,
        system=describe_system(shipped_pipeline().json),
        bytes_delivered=int(outcome.receiver["bytes_delivered"]),
        extra=extra | ({"command": list(command)} if command else {}),
    )
    result = result_of(run)
    save_result(out, result)
    say("drawing")
    title = f"{scenario.name} on {fabric.name} ({target})"
    draw_all(out, evidence.trace, evidence.trials, evidence.sender_events, title)
    draw_spreads(out, evidence.trace, evidence.trials, title)
    write_report(out)
    return result


def _measure(lab: Lab, scenario: Scenario, src: str, dst: str, out: Path, step: Step) -> Outcome:
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(out / "logs" / "agents.log", "ab"))
        sender, receiver = (
            stack.enter_context(RemoteAgent(host, partial(lab.network.spawn, host), stderr=log))
            for host in (src, dst)
        )
        refused = _connect(sender, receiver, lab.fabric, scenario)
        for name, agent in ((SENDER, sender), (RECEIVER, receiver)):
            agent.call("log", path=str((out / f"{name}.jsonl").resolve()))
        pids = {"sender": sender.pid, "receiver": receiver.pid}
        if lab.target.name == "bmv2":  # the ebpf target's process only programs; the kernel forwards
            pids |= _by_switch(lab)
        with Recorder(out, _ears(lab, src, dst), pids) as recorder:
            sender.call("start")
            let_pass(scenario.warmup_ns)
            rate_bps = _settle_on_a_rate(sender, pids, scenario.workload)
            with DeathWatch(_by_switch(lab)) as watch:
                trials = Trials(lab, scenario, src, dst, sender, recorder, watch)
                trials.run(step)
                sender.call("stop")
                sender.call("wait", what="drained", timeout_s=DRAIN_TIMEOUT_S)
                trials.look_back()
            states = sender.call("status"), receiver.call("status")
        save_faults(out / "faults.json", trials.records)
        for name, agent in ((SENDER, sender), (RECEIVER, receiver)):
            if lost := agent.call("end_log")["lost"]:
                trials.failures.append(f"event log: {lost} events of the {name} are missing")
        return Outcome(*states, rate_bps, (*refused, *trials.notes), tuple(trials.failures))


def _connect(sender: RemoteAgent, receiver: RemoteAgent, fabric: Fabric, scenario: Scenario) -> list[str]:
    """Opens both NICs, has the two queue pairs exchange their attributes, and prepares the stream.

    Returns what the machine refused the agents, for the reader of the result.
    """
    workload = scenario.workload
    config: dict[str, Any] = {
        "mtu_bytes": workload.payload_bytes,
        "cwnd_bytes": workload.window * workload.payload_bytes,
        "spare_evs_per_plane": workload.spare_evs,
    }
    if workload.burst:
        burst_bytes = workload.burst * workload.payload_bytes
        config |= {
            "congestion": "rate",
            "rate_bps": workload.rate_bps,
            "rate_burst_bytes": burst_bytes,
            "rate_quantum_bytes": burst_bytes - workload.payload_bytes + 1,
            "sack_threshold_bytes": SACK_THRESHOLD_BYTES,
        }
    plan = asdict(StreamPlan(workload.message_bytes, workload.rate_bps, scenario.seed))
    text = fabric_text(fabric)
    # A CPU each: the kernel would wake the receiver on the CPU where the sender still forwards for it.
    cpus = sorted(os.sched_getaffinity(0))
    opened = {
        agent.host: agent.call(
            "open",
            topology=fabric.name,
            topology_yaml=text,
            host=agent.host,
            config=config,
            seed=scenario.seed + number,
            cpu=cpus[number % len(cpus)] if len(cpus) > 1 else None,
        )
        for number, agent in enumerate((sender, receiver))
    }
    remote = receiver.call("receive", plan=plan)
    sender.call("send", plan=plan, remote=remote)
    for agent, peer in ((receiver, sender), (sender, receiver)):
        agent.call("connect", peer=peer.host, attributes=opened[peer.host]["qps"][0])
    return sorted({answer["refused"] for answer in opened.values() if answer["refused"]})


def _ears(lab: Lab, src: str, dst: str) -> dict[str, Listens]:
    """Taps where the machine runs eBPF anyway, else tcpdump."""
    ends = {SENDER: src, RECEIVER: dst}
    if lab.target.name == "bmv2":
        return {name: ear_at(lab.network, host) for name, host in ends.items()}
    names, fabric, offset_ns = lab.network.names, lab.fabric, measure_offset().offset_ns
    return {
        name: TapEar(names.host(host), tuple(port.ifname for port in fabric.host(host).ports), offset_ns)
        for name, host in ends.items()
    }


def _settle_on_a_rate(sender: RemoteAgent, pids: Mapping[str, int], workload: Workload) -> int:
    """Lowers the rate until no endpoint is busier than the scenario wants; returns the rate (bps)."""
    rate_bps = workload.rate_bps
    if not workload.busy:
        return rate_bps
    watched = {name: pids[name] for name in (SENDER, RECEIVER)}
    for _ in range(LOOKS):
        sent, before = _sent(sender), take_snapshot(watched)
        let_pass(LOOK_NS)
        packets, after = _sent(sender) - sent, take_snapshot(watched)
        took_ns = after.t_ns - before.t_ns
        made_bps = packets * workload.payload_bytes * 8 * 10**9 // took_ns
        rate_bps = fitting_rate(made_bps, busiest_share(before, after), workload)
        sender.call("pace", rate_bps=rate_bps)
    return rate_bps


def _sent(sender: RemoteAgent) -> int:
    return int(sender.call("status")["counters"]["sent"])


def fitting_rate(made_bps: int, busy: float, workload: Workload) -> int:
    """The rate at which endpoints are as busy as wanted, if the busier one is ``busy`` (0 to 1) with sending
    ``made_bps``: what was really sent, since a saturated sender falls short of what it is asked for.
    """
    wanted = round(made_bps * workload.busy / max(busy, 0.01))
    return min(workload.rate_bps, max(wanted, round(LEAST_SHARE * workload.rate_bps)))


def _stream(workload: Workload, rate_bps: int) -> dict[str, Any]:
    """What was sent, for the result: ``rate_bps`` is of payload."""
    return {
        "rate_bps": rate_bps,
        "packets_per_s": round(rate_bps / 8 / workload.payload_bytes),
        "payload_bytes": workload.payload_bytes,
        "burst_packets": workload.burst,
        "adapted": bool(workload.busy) and rate_bps < workload.rate_bps,
    }


def _by_switch(lab: Lab) -> dict[str, int]:
    """The processes that forward, or on ebpf program: named as validity tells them from agents."""
    if isinstance(lab.target, Bmv2Target):
        return {SWITCH_PREFIX + name: pid for name, pid in lab.target.processes().items()}
    return {f"{SWITCH_PREFIX}server {pid}": pid for pid in lab.target.pids()}
