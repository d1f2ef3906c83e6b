"""What a comparison is going to do, in words: ``mrclab run SCENARIO --dry-run``."""

from __future__ import annotations

from experiments.spec.comparison import Comparison
from experiments.spec.fault_schedule import schedule
from experiments.spec.one_plane import specs_in_one_plane
from experiments.spec.placement import place
from linux.errors import InputError
from topologies import one_plane

MOST_FAULTS = 20


def plan_text(comparison: Comparison) -> str:
    """The plan, a line each. Raises InputError where the scenario does not fit its fabric."""
    lines = [f"{comparison.name}: {comparison.description}"]
    if comparison.claim:
        lines.append(f"claim: {comparison.claim}")
    params = ", ".join(f"{key} {value}" for key, value in comparison.workload_params.items())
    lines.append(f"workload: {comparison.workload} ({params})")
    lines.append(
        f"{comparison.repetitions} repetitions of each transport, seeds from {comparison.seed}, "
        f"warm-up {comparison.warmup_ns / 1e6:g} ms, {comparison.limit_ns / 1e9:g} s each at most"
    )
    whole = comparison.fabric()
    for transport in comparison.transports:
        fabric = one_plane(whole) if transport.one_plane else whole
        specs = specs_in_one_plane(comparison.faults) if transport.one_plane else comparison.faults
        try:
            placement = place(comparison.workload, comparison.workload_params, fabric, comparison.seed)
        except InputError as error:
            raise InputError(f"{error}", where=f"scenario {comparison.name}") from None
        rates = {link.kind: link.profile.rate_bps for link in fabric.links}
        lines.append(
            f"transport {transport.name}: {transport.kind} over {transport.routing}, {fabric.name} with "
            f"{fabric.planes} planes, NICs of {fabric.planes} x {rates['host'] / 1e6:g} Mbit/s"
        )
        lines.append(f"  ranks: {', '.join(f'{i} on {host}' for i, host in enumerate(placement.hosts))}")
        length = placement.length_ns or comparison.limit_ns
        used = tuple(placement.links_used(fabric))
        faults = schedule(specs, fabric, comparison.seed, length, used)
        lines += [f"  fault: {fault}" for fault in faults[:MOST_FAULTS]]
        if len(faults) > MOST_FAULTS:
            lines.append(f"  ... and {len(faults) - MOST_FAULTS} more")
    return "\n".join(lines)
