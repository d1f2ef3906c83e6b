"""Calibration: how much slower than written an experiment of rank processes runs on this machine.

The ranks of a few seconds without faults show how full their CPUs are. If they are too full, the whole
experiment goes into slow motion (`mrclab.experiments.spec.slow_motion`), and the rehearsal is made again.
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
"""Of its CPU that the ranks there may use, and for which they are slowed down if they use more."""
LEAST_STEP = 1.2
"""If ranks were too slow without using all of that."""
LONGEST_NS = 1_500_000_000
STEPS = 4
ROUNDS = 4
LEAST_BPS = 10**6
"""The slowest link of a topology."""
SHORT = {
    "steps": STEPS,
    "iterations": 1,
    "warmup_iterations": 0,
    "second_at_ns": 0,
    "duration_ns": LONGEST_NS,
}
"""At most these, in a rehearsal."""


def needs_calibration(scenario: Scenario) -> bool:
    """Return True if the scenario wants it and nothing else adapts the rate.

    The workload's ranks then send as fast as the links carry.
    """
    return scenario.rehearse and scenario.workload.kind in KINDS and bool(_busiest(scenario))


def calibrated(scenario: Scenario, out: Path, say: Say) -> Scenario:
    """Return the scenario at the speed that this machine can run it, at most as written.

    Of transports that differ in their loss alone, one is rehearsed. The files of a rehearsal lie in `out`, so
    that it leaves nothing elsewhere if it is killed. Raise InputError if it would be
    so slow that the topology's links cannot be made as slow. See `run_scenario` for other errors.
    """
    found = scenario
    for _ in range(ROUNDS):
        say("rehearsing, to find the rate" + (f": {_words(found)}" if found is not scenario else ""))
        share, too_slow = _rehearse(found, out)
        if not too_slow and share <= SHARE:
            break
        # Half as fast does not mean half of the CPU: then fewer packets are handled at a time.
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
    """Return the transports to rehearse: those whose packets our NICs make, each once."""
    found: dict[str, tuple[str, TransportEntry]] = {}
    for transport in scenario.transports:
        if transport.core.has_nic:
            alike = repr((transport.kind, transport.routing, transport.one_plane, transport.channel_options))
            found.setdefault(alike, (transport.name, scenario.entries[transport.name]))
    return dict(found.values())


def rehearsal(scenario: Scenario) -> Scenario:
    """Return a short scenario of the same load, without faults."""
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
    """Return the share of the fullest CPU that its ranks used, and True if they were too slow."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="rehearsal-", dir=out) as place:
        run_scenario(rehearsal(scenario), Path(place), outcome, say=lambda _: None, step=lambda _: None)
    repetitions = [r for found in outcome.repetitions.values() for r in found]
    loads = [load for repetition in repetitions for load in repetition.validity.loads]
    too_slow = any(too_fast(load) for load in loads) or any(r.failure for r in repetitions)
    return max((load.share or 0.0 for load in loads), default=0.0), too_slow
