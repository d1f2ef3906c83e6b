"""The plan of a scenario's run as text, for ``mrclab run SCENARIO --dry-run``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from mrclab.experiments.spec.fault_schedule import (
    PlannedFault,
    faults_met,
    random_faults,
    schedule,
    trials_of,
)
from mrclab.experiments.spec.faults import Drain, RandomFaults, SequentialFaults
from mrclab.experiments.spec.model import Scenario
from mrclab.experiments.spec.placement import Placement, mesh_streams
from mrclab.experiments.spec.program_workload import Program, words_of
from mrclab.experiments.spec.workloads import Mesh
from mrclab.hosts.transports.table import Transport
from mrclab.topologies import Fabric, one_plane

MOST_FAULTS = 20


def plan_text(scenario: Scenario) -> str:
    """Return the plan as lines of text. Raise InputError if the scenario does not fit its fabric."""
    lines = [f"{scenario.name}: {scenario.description}"]
    if scenario.claim:
        lines.append(f"claim: {scenario.claim}")
    params = ", ".join(f"{key} {value}" for key, value in scenario.workload.params.items())
    if isinstance(scenario.workload, Program):
        params = words_of(scenario.workload)
    lines.append(f"workload: {scenario.workload.kind} ({params})")
    limit = f", {scenario.limit_ns / 1e9:g} s each at most" if scenario.workload.lasts_ns is None else ""
    lines.append(
        f"{scenario.repetitions} repetitions of each transport, seeds from {scenario.seed}, "
        f"warm-up {scenario.warmup_ns / 1e6:g} ms{limit}"
    )
    whole = scenario.fabric()
    for transport in scenario.transports:
        lines += _transport_lines(scenario, transport, one_plane(whole) if transport.one_plane else whole)
    return "\n".join(lines)


def _transport_lines(scenario: Scenario, transport: Transport, fabric: Fabric) -> Iterator[str]:
    placement = scenario.placement(fabric, scenario.seed)
    if isinstance(scenario.workload, Mesh):
        mesh_streams(scenario.workload, placement.hosts, scenario.seed)
    rates = {link.kind: link.profile.rate_bps for link in fabric.links}
    yield (
        f"transport {transport.name}: {transport.kind} over {transport.routing}, {fabric.name} with "
        f"{fabric.planes} planes, NICs of {fabric.planes} x {rates['host'] / 1e6:g} Mbit/s"
    )
    yield f"  ranks: {', '.join(f'{i} on {host}' for i, host in enumerate(placement.hosts))}"
    faults = list(islice(_faults(scenario, transport, fabric, placement), MOST_FAULTS + 1))
    yield from (f"  fault: {fault}" for fault in faults[:MOST_FAULTS])
    if len(faults) > MOST_FAULTS:
        yield "  ... and more"


def _faults(
    scenario: Scenario, transport: Transport, fabric: Fabric, placement: Placement
) -> Iterator[PlannedFault | str]:
    specs = faults_met(scenario.faults, transport)
    used = tuple(sorted(placement.links_used(fabric)))
    length_ns = placement.length_ns or scenario.limit_ns
    yield from schedule(specs, fabric, scenario.seed, length_ns, used)
    for number, spec in enumerate(specs):
        if isinstance(spec, SequentialFaults):
            for fault in trials_of(spec, number, fabric, scenario.seed, used):
                yield (
                    f"{fault.kind} on {fault.place} for {spec.hold_ns / 1e6:g} ms, "
                    f"then {spec.settle_ns / 1e6:g} ms to settle"
                )
        elif isinstance(spec, Drain):
            until = f"{(spec.at_ns + spec.duration_ns) / 1e6:g} ms" if spec.duration_ns else "the end"
            yield f"hosts avoid {', '.join(spec.where)} from {spec.at_ns / 1e6:g} ms to {until}"
        elif isinstance(spec, RandomFaults):
            yield from random_faults(fabric, placement.hosts, spec, scenario.seed, length_ns, number)
