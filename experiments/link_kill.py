"""The link-kill experiment: a steady spray of writes, a link cut under it, healed, another cut, and so on.

Evidence only: the run leaves captures, event logs and the faults' stamps in its directory, and what they mean
is found out afterwards from those files (experiments.report).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from controller.faults import LinkFault
from controller.pipeline import shipped_pipeline
from experiments.faults import FaultRecord, choose_links, fabric_links_between, save_faults
from experiments.plots import draw_all
from experiments.recorder import RECEIVER, SENDER, Ear, Recorder
from experiments.report import examine
from experiments.result import Run, result_of, save_result
from experiments.scenario import RANDOM, Scenario
from experiments.system import describe_system
from hosts.remote import RemoteAgent
from hosts.stream import StreamPlan
from testbed.lab import Lab
from testbed.topology_text import topology_text
from topologies import Fabric

RESTORE_TIMEOUT_S = 5.0
DRAIN_TIMEOUT_S = 10.0

Step = Callable[[int], None]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the endpoints said at the end of the stream."""

    sender: Mapping[str, Any]
    receiver: Mapping[str, Any]
    notes: tuple[str, ...]

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
    scenario: Scenario, fabric: Fabric, target: str, out: Path, *, say: Say, step: Step
) -> dict[str, Any]:
    """Runs the whole experiment and returns the contents of the result.json it leaves in ``out``.

    ``say`` is told what is going on, ``step`` how many trials are done.
    """
    scenario.check_against(fabric)
    src, dst = scenario.endpoints(fabric)
    logs = out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with Lab.up(fabric, target, logs, say=say) as lab:
        target = lab.target.name
        outcome = _measure(lab, scenario, src, dst, out, step)
    say("reading the captures")
    evidence = examine(out, fabric, src, dst, integrity=outcome.integrity, notes=outcome.notes)
    run = Run(
        scenario=scenario,
        target=target,
        topology=fabric.name,
        trials=evidence.trials,
        validity=evidence.validity,
        system=describe_system(shipped_pipeline().json),
        bytes_delivered=int(outcome.receiver["bytes_delivered"]),
        extra={"endpoints": {"sender": outcome.sender, "receiver": outcome.receiver}},
    )
    result = result_of(run)
    save_result(out, result)
    say("drawing")
    title = f"{scenario.name} on {fabric.name} ({target})"
    draw_all(out, evidence.trace, evidence.trials, evidence.sender_events, title)
    return result


def _measure(lab: Lab, scenario: Scenario, src: str, dst: str, out: Path, step: Step) -> Outcome:
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(out / "logs" / "agents.log", "ab"))
        sender, receiver = (
            stack.enter_context(RemoteAgent(host, partial(lab.network.spawn, host), stderr=log))
            for host in (src, dst)
        )
        _connect(sender, receiver, lab.fabric, scenario)
        pids = {"sender": sender.pid, "receiver": receiver.pid}
        if lab.target.name == "bmv2":  # the ebpf target's process only programs; the kernel forwards
            pids |= {f"switches-{pid}": pid for pid in lab.target.pids()}
        ears = {
            SENDER: Ear(spawn=partial(_spawn_capture, lab, src)),
            RECEIVER: Ear(spawn=partial(_spawn_capture, lab, dst)),
        }
        with Recorder(out, ears, pids) as recorder:
            sender.ask("start")
            _let_pass(scenario.warmup_ns)
            faults, notes = _trials(lab, scenario, src, dst, sender, recorder, step)
            sender.ask("stop")
            sender.ask("wait", what="drained", timeout_s=DRAIN_TIMEOUT_S)
            outcome = Outcome(sender.ask("status"), receiver.ask("status"), tuple(notes))
        save_faults(out / "faults.json", faults)
        for name, agent in ((SENDER, sender), (RECEIVER, receiver)):
            agent.ask("log", path=str((out / f"{name}.jsonl").resolve()))
        return outcome


def _connect(sender: RemoteAgent, receiver: RemoteAgent, fabric: Fabric, scenario: Scenario) -> None:
    """Opens both NICs, has the two queue pairs exchange their attributes, and prepares the stream."""
    workload = scenario.workload
    config = {
        "mtu_bytes": workload.payload_bytes,
        "cwnd_bytes": workload.window * workload.payload_bytes,
        "spare_evs_per_plane": workload.spare_evs,
    }
    plan = asdict(StreamPlan(workload.message_bytes, workload.rate_bps, scenario.seed))
    text = topology_text(fabric)
    # A CPU each: the kernel would wake the receiver on the CPU where the sender still forwards for it.
    cpus = sorted(os.sched_getaffinity(0))
    attributes = {
        agent.host: agent.ask(
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
    remote = receiver.ask("receive", plan=plan)
    sender.ask("send", plan=plan, remote=remote)
    for agent, peer in ((receiver, sender), (sender, receiver)):
        agent.ask("connect", peer=peer.host, attributes=attributes[peer.host])


def _trials(
    lab: Lab,
    scenario: Scenario,
    src: str,
    dst: str,
    sender: RemoteAgent,
    recorder: Recorder,
    step: Step,
) -> tuple[list[FaultRecord], list[str]]:
    if scenario.fault.where == RANDOM:
        links = choose_links(fabric_links_between(lab.fabric, src, dst), scenario.trials, scenario.seed)
    else:
        links = (scenario.fault.where,) * scenario.trials
    records: list[FaultRecord] = []
    notes: list[str] = []
    for number, link in enumerate(links):
        a, b = link.split(":")
        fault = LinkFault(a, b, direction=scenario.fault.direction)
        recorder.mark()
        lab.faults.prepare(fault)
        moment = lab.faults.apply(fault)
        try:
            _let_pass(scenario.hold_ns)
        finally:
            restored = lab.faults.undo(a, b)
        records.append(
            FaultRecord(
                kind=fault.kind,
                where=link,
                t_before_ns=moment.t_before_ns,
                t_after_ns=moment.t_after_ns,
                restore_before_ns=restored.t_before_ns,
                restore_after_ns=restored.t_after_ns,
                direction=fault.direction,
            )
        )
        if not sender.ask("wait", what="restored", timeout_s=RESTORE_TIMEOUT_S)["holds"]:
            notes.append(f"trial {number}: not every path came back within {RESTORE_TIMEOUT_S:g} s")
        _let_pass(scenario.settle_ns)
        step(number + 1)
    recorder.mark()
    return records, notes


def _let_pass(duration_ns: int) -> None:
    """Lets time pass: the scenario's, in which the stream goes on. Nothing is being waited for."""
    time.sleep(duration_ns / 1e9)


def _spawn_capture(lab: Lab, host: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
    return lab.network.spawn(
        host, command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
