"""The trials of a run: a fault, a while, the repair, again; and an eye on switches that end by themselves."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import grpc

from controller.fault_kinds import Fault, Moment
from experiments.measure.faults import FaultRecord, choose_links, fabric_links_between
from experiments.measure.validity import SWITCH_PREFIX, kept_up
from experiments.run.recorder import Recorder
from experiments.spec.scenario import RANDOM, SWITCH_DEATH, Scenario
from hosts.remote import RemoteAgent
from linux.errors import InputError, SwitchError
from linux.process_deaths import Death, DeathWatch
from switches.bmv2.target import Bmv2Target
from testbed.lab import Lab
from topologies import Fabric

RESTORE_TIMEOUT_S = 5.0
DEATH_TIMEOUT_S = 5.0

Step = Callable[[int], None]


class Trials:
    """Makes the faults of a scenario one after the other and keeps the record of them.

    ``records`` holds the faults that were made, in order; ``notes`` what a reader should know; ``failures``
    the switches that ended without having been asked to. Such a death is a fault of its own in the records
    (kind ``switch-death``), the switch is started and programmed again, and the trials go on.
    """

    def __init__(
        self,
        lab: Lab,
        scenario: Scenario,
        src: str,
        dst: str,
        sender: RemoteAgent,
        recorder: Recorder,
        watch: DeathWatch,
    ) -> None:
        self._lab = lab
        self._scenario = scenario
        self._sender = sender
        self._recorder = recorder
        self._watch = watch
        self._places = _places(scenario, lab.fabric, src, dst)
        self.records: list[FaultRecord] = []
        self.notes: list[str] = []
        self.failures: list[str] = []
        self._marks = 0

    def run(self, step: Step) -> None:
        """Makes all faults; ``step`` is told how many trials are done.

        A trial in which the machine did not keep up is made again, as many times in all as there are trials:
        a shared machine has such moments, and whether one falls into a trial does not depend on how the trial
        goes. Raises SwitchError where a switch ended that cannot be started again.
        """
        again = len(self._places)
        self._mark()
        for number, place in enumerate(self._places):
            while not self._trial(number, place) and again:
                again -= 1
            step(number + 1)

    def _trial(self, number: int, place: str) -> bool:
        """Makes one fault and repairs it; returns whether the machine kept up meanwhile."""
        deadly = self._scenario.fault.kind == SWITCH_DEATH
        death = self._kill(place) if deadly else self._cut(place)
        if death is not None:
            self._unasked(death)
        self._settle(number)
        self._mark()
        return kept_up(self._recorder.last_load())

    def _mark(self) -> None:
        self._recorder.mark()
        self._marks += 1

    def look_back(self) -> None:
        """Names the switches that ended after the last trial, when it was too late to measure them."""
        while death := self._watch.wait(0):
            switch = death.name.removeprefix(SWITCH_PREFIX)
            self.failures.append(f"switch failure: {switch} ended by itself after the last trial")

    def _cut(self, link: str) -> Death | None:
        """Cuts a link for a while; returns early with the death of a switch."""
        faults = self._lab.faults
        fault = Fault("blackhole", link, self._scenario.fault.direction)
        faults.prepare(fault)
        moment = faults.apply(fault)
        death = self._watch.wait(self._scenario.hold_ns / 1e9)
        restored: Moment | None = None
        try:
            restored = faults.undo(link)
        except grpc.RpcError:
            # The switch died with its fault entries: there is nothing to undo in it any more.
            death = death or self._watch.wait(DEATH_TIMEOUT_S)
            if death is None:
                raise
            faults.forget(link)
        if death is not None and restored is None:
            return death  # its own record covers the cut, which it turned into something larger
        self.records.append(
            FaultRecord(
                kind=fault.kind,
                where=link,
                t_before_ns=moment.t_before_ns,
                t_after_ns=moment.t_after_ns,
                restore_before_ns=restored.t_before_ns if restored else None,
                restore_after_ns=restored.t_after_ns if restored else None,
                direction=fault.direction,
            )
        )
        return death

    def _kill(self, switch: str) -> Death | None:
        """Ends a switch for a while; returns the death of another, if there was one."""
        before, after = self._lab.target.kill(switch)
        if not isinstance(self._lab.target, Bmv2Target):  # no process ends that one could watch
            death = self._watch.wait(self._scenario.hold_ns / 1e9)
            self._revive(switch, before, after)
            return death
        death = self._watch.wait(DEATH_TIMEOUT_S)
        if death is None or death.name != SWITCH_PREFIX + switch:
            self._revive(switch, before, after)
            return death
        other = self._watch.wait(self._scenario.hold_ns / 1e9)
        self._revive(switch, before, after)
        return other

    def _unasked(self, death: Death) -> None:
        """Records a death that the scenario did not ask for, and mends it after the scenario's hold."""
        switch = death.name.removeprefix(SWITCH_PREFIX)
        if not isinstance(self._lab.target, Bmv2Target):
            raise SwitchError(f"the switches' process ended in the middle of the run ({death.name})")
        words = self._lab.target.last_words(switch)
        self.failures.append(f"switch failure: {switch} ended by itself ({words}) and was started again")
        let_pass(self._scenario.hold_ns)
        if self._marks <= len(self.records):  # else the trial it fell into has no record of its own
            self._mark()
        self._revive(switch, death.t_before_ns, death.t_after_ns)

    def _revive(self, switch: str, before_ns: int, after_ns: int) -> None:
        restart = time.monotonic_ns()
        self._lab.revive(switch)
        self.records.append(
            FaultRecord(
                kind=SWITCH_DEATH,
                where=switch,
                t_before_ns=before_ns,
                t_after_ns=after_ns,
                restore_before_ns=restart,
                restore_after_ns=time.monotonic_ns(),
            )
        )
        if isinstance(self._lab.target, Bmv2Target):
            pid = self._lab.target.processes()[switch]
            self._watch.add(SWITCH_PREFIX + switch, pid)
            self._recorder.watch({SWITCH_PREFIX + switch: pid})

    def _settle(self, number: int) -> None:
        restored = self._sender.call("wait", what="restored", timeout_s=RESTORE_TIMEOUT_S)["holds"]
        if not restored:
            self.notes.append(f"trial {number}: not every path came back within {RESTORE_TIMEOUT_S:g} s")
        death = self._watch.wait(self._scenario.settle_ns / 1e9)
        if death is not None:
            self._unasked(death)


def _places(scenario: Scenario, fabric: Fabric, src: str, dst: str) -> tuple[str, ...]:
    """What each trial breaks. Raises InputError where there is nothing to choose from."""
    if scenario.fault.where != RANDOM:
        return (scenario.fault.where,) * scenario.trials
    if scenario.fault.kind == SWITCH_DEATH:
        spines = {node for path in fabric.paths(src, dst) for node in path.nodes if "-t1-" in node}
        choice: tuple[str, ...] = tuple(s.name for s in fabric.switches if s.name in spines)
    else:
        choice = fabric_links_between(fabric, src, dst)
    with contextlib.suppress(ValueError):
        return choose_links(choice, scenario.trials, scenario.seed)
    raise InputError(f"nothing to break lies between {src} and {dst}")


def let_pass(duration_ns: int) -> None:
    """Lets time pass: the scenario's, in which the stream goes on. Nothing is being waited for."""
    time.sleep(duration_ns / 1e9)
