"""Calibration: find how much a rank workload must be slowed down, so that this machine is fast enough.

A rehearsal of a few seconds without faults shows how busy the CPUs of the ranks are. If the CPUs are too
busy, the experiment is slowed down (`mrclab.experiments.spec.slow_motion`) and rehearsed again.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

from mrclab.experiments.live.engine import run_scenario
from mrclab.experiments.measure.validity import too_fast
from mrclab.experiments.run.outcome import Outcome
from mrclab.experiments.spec.model import Scenario
from mrclab.experiments.spec.slow_motion import slowed
from mrclab.experiments.spec.transports import TransportEntry
from mrclab.linux.errors import InputError
from mrclab.testbed.running import Say

KINDS = (
    *("stream", "bidirectional", "join", "request-response", "permutation", "incast"),
    *("all-reduce", "all-gather", "all-to-all", "training"),
)
SHARE, AIM = 0.85, 0.75
"""Ranks may use the share SHARE of a CPU. If ranks use more, they are slowed down until they use AIM."""
LEAST_STEP = 1.2
"""The smallest factor by which the experiment is slowed down in one step."""
LONGEST_NS = 1_500_000_000
STEPS = 4
ROUNDS = 4
LEAST_BPS = 10**6
"""The lowest rate that a topology allows for a link."""
SHORT = {
    "steps": STEPS,
    "iterations": 1,
    "warmup_iterations": 0,
    "second_at_ns": 0,
    "duration_ns": LONGEST_NS,
}
"""The largest values of the workload's settings in a rehearsal."""


def needs_calibration(scenario: Scenario) -> bool:
    """Return True if the scenario asks for a rehearsal and its workload sends as fast as the links allow.

    A rehearsal is a short run of the workload without faults.
    """
    return scenario.rehearse and scenario.workload.kind in KINDS and bool(_busiest(scenario))


def calibrated(scenario: Scenario, out: Path, say: Say) -> Scenario:
    """Return the scenario, slowed down if this machine is too slow for the scenario.

    Rehearsals (short runs without faults) show whether this is so. The files of a rehearsal are in `out`, so
    that a killed process leaves no files elsewhere. Raise InputError if the links would have to be slower
    than a topology allows. See `run_scenario` for other errors.
    """
    found = scenario
    for _ in range(ROUNDS):
        say("rehearsing, to find the rate" + (f": {_words(found)}" if found is not scenario else ""))
        share, too_slow = _rehearse(found, out)
        if not too_slow and share <= SHARE:
            break
        # If the rate is halved, the ranks' CPU share falls by less than half: ranks then handle fewer packets
        # at a time. So the factor is squared.
        more = max((share / AIM) ** 2, LEAST_STEP)
        found = _slower(scenario, math.ceil(20 * found.slower / scenario.slower * more) / 20)
    if found is not scenario:
        say(f"this runs {_words(found)}, so that the CPUs suffice: rates divided, times multiplied")
    return found


def _words(scenario: Scenario) -> str:
    return f"{scenario.slower:.3g} times slower than written"


def _slower(scenario: Scenario, times: float) -> Scenario:
    least = min(link.profile.rate_bps for link in scenario.fabric().links)
    if least / times < LEAST_BPS:
        raise InputError(
            f"this machine would have to run it {times:.3g} times slower, with links below 1 Mbit/s: "
            "--target sim runs it in virtual time",
            where=f"scenario {scenario.name}",
        )
    return slowed(scenario, times)


def _busiest(scenario: Scenario) -> dict[str, TransportEntry]:
    """Return the transports that use mrclab's NICs. Of transports that differ only in loss, return one."""
    found: dict[str, tuple[str, TransportEntry]] = {}
    for transport in scenario.transports:
        if transport.core.has_nic:
            alike = repr((transport.kind, transport.routing, transport.one_plane, transport.channel_options))
            found.setdefault(alike, (transport.name, scenario.entries[transport.name]))
    return dict(found.values())


def rehearsal(scenario: Scenario) -> Scenario:
    """Return a short scenario with the same load as ``scenario``, but without faults."""
    workload = scenario.workload
    short = {}
    for name, most in SHORT.items():
        value = getattr(workload, name, None)
        if value:
            short[name] = min(value, most)
    captured = scenario.measure.capture or bool(scenario.faults)
    found = scenario.model_copy(
        update={
            "entries": _busiest(scenario),
            "workload": workload.model_copy(update=short),
            "faults": (),
            "repetitions": 1,
            "measure": scenario.measure.model_copy(update={"capture": captured}),
        }
    )
    found.__dict__.pop("transports", None)
    return found


def _rehearse(scenario: Scenario, out: Path) -> tuple[float, bool]:
    """Run a rehearsal. Return the largest share of a CPU that ranks used, and True if ranks were too slow."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="rehearsal-", dir=out) as place:
        run_scenario(rehearsal(scenario), Path(place), outcome, say=lambda _: None, step=lambda _: None)
    repetitions = [r for found in outcome.repetitions.values() for r in found]
    loads = [load for repetition in repetitions for load in repetition.validity.loads]
    too_slow = any(too_fast(load) for load in loads) or any(r.failure for r in repetitions)
    return max((load.share or 0.0 for load in loads), default=0.0), too_slow
