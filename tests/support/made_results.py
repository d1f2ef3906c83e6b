"""Made-up results for judges: rates and losses over time, faults, flows and operations, by repetition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BIN_US = 10_000
OTHERS = ("bfd", "bgp-hold", "frr", "default", "aggressive", "most-aggressive")
"""Transports other than MRC."""
STEADY = (0.999, 0.9995, 0.9998, 1.0002, 1.0005, 1.001)
"""Factors by which the repetitions of a usual run differ."""
EVEN = (0.9999, 0.99995, 0.99998, 1.00002, 1.00005, 1.0001)
"""Factors that differ so little that no limit is inside the repetitions' confidence interval."""
WIDE = (0.5, 0.6, 0.95, 1.05, 1.4, 1.5)
"""Factors that differ so much that almost every limit is inside the repetitions' confidence interval."""


def like_thin(rate: str) -> dict[str, Any]:
    """Return the topology ``thin`` with another rate of its links. A NIC has four links."""
    links = {"host": {"rate": rate}, "fabric": {"rate": rate}}
    return {"name": "like-thin", "planes": 4, "t0": 4, "t1": 4, "hosts": 8, "links": links}


FAST = like_thin("100 Gbit/s")
Rate = Callable[[float], float]
Result = dict[str, Any]


@dataclass(frozen=True)
class Cases:
    good: Result
    bad: Mapping[str, Result]
    unclear: Mapping[str, Result]


def no_loss(t: float) -> float:
    return 0


def series(rate: Rate, seconds: float, lost: Rate = no_loss, repetition: int = 0) -> dict[str, Any]:
    """Return a repetition's series from -0.1 s on. ``rate`` (Mbit/s) and ``lost`` depend on the time (s)."""
    bins = round((seconds + 0.1) * 1e6 / BIN_US)
    times = [i * BIN_US / 1e6 - 0.1 for i in range(bins)]
    return {
        "repetition": repetition,
        "start_us": -100_000,
        "bin_us": BIN_US,
        "bytes": [round(rate(t) * BIN_US / 8) for t in times],
        "lost": [int(lost(t)) for t in times],
    }


def over_time(
    rate: Rate,
    seconds: float,
    lost: Rate = no_loss,
    faults: Iterable[tuple[str, float, float | None]] = (),
    spread: Sequence[float] = STEADY,
) -> dict[str, Any]:
    """Return a transport's results. The rate of each repetition is ``rate`` times a factor of ``spread``."""
    made = list(faults)
    return {
        "samples": [sample(number, {}) for number in range(len(spread))],
        "series": [
            series(lambda t, f=factor: f * rate(t), seconds, lost, number)  # type: ignore[misc]
            for number, factor in enumerate(spread)
        ],
        "faults": [fault(*entry, number) for number in range(len(spread)) for entry in made],
    }


def fault(where: str, at_s: float, until_s: float | None, repetition: int) -> dict[str, Any]:
    at = round(at_s * 1e9)
    until = None if until_s is None else round(until_s * 1e9)
    return {
        "kind": "blackhole",
        "where": where,
        "repetition": repetition,
        "t_before_ns": at,
        "t_after_ns": at,
        "restore_before_ns": until,
        "restore_after_ns": until,
        "at_us": at / 1e3,
    }


def metrics(spread: Sequence[float] = STEADY, **values: float | Sequence[float]) -> dict[str, Any]:
    """Return a transport's results: for each factor in ``spread``, a repetition with multiplied metrics."""
    rows = {name: [v] if isinstance(v, int | float) else list(v) for name, v in values.items()}
    factors = enumerate(spread)
    return {"samples": [sample(i, {n: [f * v for v in row] for n, row in rows.items()}) for i, f in factors]}


def sample(repetition: int, values: Mapping[str, list[float]]) -> dict[str, Any]:
    """Return a repetition that ended with correct data."""
    return {"repetition": repetition, "failure": None, "integrity": "ok", "metrics": dict(values)}


def events(repetitions: int = len(STEADY), left_out: int = 0, **rows: list[list[float]]) -> dict[str, Any]:
    """Return path events that are the same in each repetition."""
    kinds = {kind: rows.get(kind, []) for kind in ("lost", "retired", "replaced", "restored")}
    entry = {**kinds, "skipped": rows.get("skipped", {}), "left_out": left_out}
    return {"path_events": [{"repetition": number, **entry} for number in range(repetitions)]}


def trial(transport: str, repetition: int = 0, **times: Any) -> dict[str, Any]:
    """Return a fault with its times. By default, the fault caused losses of packets."""
    empty = dict.fromkeys(("first_loss_us", "detected_us", "rerouted_us", "recovered_us"))
    sound = {"felt": True, "rtt_us": None, "integrity": "ok", "checks": []}
    return {"transport": transport, "repetition": repetition, **sound, **empty, **times}


def result(
    workload: Mapping[str, Any],
    transports: Mapping[str, Mapping[str, Any]],
    topology: str | dict[str, Any] = "thin",
    trials: Sequence[Mapping[str, Any]] = (),
    **more: Any,
) -> dict[str, Any]:
    """Return the parts of a result that judges read."""
    empty: dict[str, Any] = {"samples": [], "series": [], "faults": [], "options": {}, "integrity": "ok"}
    where = "p0-t0-0:p0-t1-0"
    return {
        "parameters": {"topology": topology, "workload": dict(workload)},
        "transports": {
            name: empty | {"kind": "rocev2" if name in OTHERS or "roce" in name else "mrc"} | dict(found)
            for name, found in transports.items()
        },
        "trials": [
            {"fault": {"kind": "blackhole", "where": where, "t_before_ns": number * 10**9}} | dict(trial)
            for number, trial in enumerate(trials)
        ],
        "seed": 1,
        "valid": True,
        **more,
    }


def flow_of(kind: str, seconds: float, **more: Any) -> dict[str, Any]:
    """Return the description of a workload of flows, in the form that `result.json` has."""
    given = {
        "kind": kind,
        "message_bytes": 16384,
        "rate_bps": 0,
        "depth": 16,
        "duration_ns": round(seconds * 1e9),
    }
    ends: dict[str, Any] = {"src": "auto", "dst": "auto"}
    if kind == "permutation":
        ends = {"ranks": 4}
    if kind == "incast":
        ends = {"dst": "auto", "senders": 2, "victim": True}
    return given | ends | more


def training(**more: Any) -> dict[str, Any]:
    asked = {"kind": "training", "ranks": 4, "ranks_per_host": 1, "dtype": "float32"}
    return asked | {"size_bytes": 262_144, "compute_ns": 200_000_000, "steps": 40} | more
