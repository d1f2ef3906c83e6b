"""Made-up results for the judges of figures 9 to 11 and 19, which compare bandwidths after faults."""

from __future__ import annotations

from typing import Any

from tests.support.made_results import (
    STEADY,
    Cases,
    Rate,
    Result,
    flow_of,
    over_time,
    result,
)


def between(low: float, high: float, inside: float, outside: float = 100.0) -> Rate:
    return lambda t: inside if low <= t < high else outside


NIC_FAULTS = [("h0-eth1", 1, 6), ("h0-eth2", 2, 5), ("h0-eth3", 3, 4)]
SPINES = {"planes": 1, "t0": 2, "t1": 4, "hosts": 2}
SPINE_FAULTS = [(f"p0-t0-0:p0-t1-{i + 1}", begin, end) for i, (_, begin, end) in enumerate(NIC_FAULTS)]


def spines(fabric: str) -> dict[str, Any]:
    return {"name": "s", **SPINES, "links": {"host": {"rate": "100 Mbit/s"}, "fabric": {"rate": fabric}}}


def steps(shares: list[float]) -> Rate:
    return lambda t: 100 * shares[max(0, min(len(shares) - 1, int(t)))]


STEPPED = steps([1, 0.75, 0.5, 0.25, 0.5, 0.75, 1])


def dipping(rate: Rate, seconds: float) -> Rate:
    """Return a rate that is 0 for the first ``seconds`` of each second from second 1 on."""
    return lambda t: 0 if t >= 1 and t % 1 < seconds else rate(t)


FULL = {"bidirectional": 1.93, "stream": 0.965}
"""The rate that full links carry in each workload, divided by the NICs' rate of 100 Mbit/s."""


def times(factor: float, rate: Rate) -> Rate:
    return lambda t: factor * rate(t)


def stepwise(faults: list[tuple[str, float, float]], topology: Any, kind: str) -> Cases:
    def run(rate: Rate, spread: tuple[float, ...] = STEADY) -> Result:
        made = over_time(times(FULL[kind], rate), 7, faults=faults, spread=spread)
        return result(flow_of(kind, 7), {"mrc": made}, topology)

    return Cases(
        run(dipping(STEPPED, 0.02)),
        {
            "no step": run(lambda t: 100),
            "2 % off": run(lambda t: STEPPED(t) - 2 if 3 <= t < 4 else STEPPED(t)),
            "long dips": run(dipping(STEPPED, 0.1)),
            "never back": run(lambda t: STEPPED(t) if t < 4 else 25),
            "nine tenths of the load": run(times(0.9, STEPPED)),
        },
        {
            "two repetitions": run(STEPPED, (1, 1)),
            "no faults": result(flow_of(kind, 7), {"mrc": over_time(STEPPED, 7)}, topology),
        },
    )


def half(topology: Any, kind: str, places: list[str]) -> Cases:
    faults = [(place, 1.0, 2.0) for place in places]

    def run(rate: Rate, spread: tuple[float, ...] = STEADY) -> Result:
        made = over_time(times(FULL[kind], rate), 3, faults=faults, spread=spread)
        return result(flow_of(kind, 3), {"mrc": made}, topology)

    good = between(1, 2, 50)
    return Cases(
        run(good),
        {
            "never back": run(lambda t: 100 if t < 1 else 50),
            "long dip": run(dipping(good, 0.1)),
            "2 % off while half is down": run(between(1, 2, 48)),
            "nine tenths of the load": run(times(0.9, good)),
        },
        {"two repetitions": run(good, (1, 1))},
    )


def fig10() -> Cases:
    def run(rate: Rate, spread: tuple[float, ...] = STEADY) -> Result:
        full = times(FULL["bidirectional"], rate)
        made = over_time(full, 3, faults=[("p3-t0-0", 1, None)], spread=spread)
        return result(flow_of("bidirectional", 3), {"mrc": made})

    def fails(dip: float, left: float) -> Rate:
        return lambda t: 100 if t < 1 else 0 if t < 1 + dip else left

    return Cases(
        run(fails(0.1, 75)),
        {
            "dead": run(fails(2, 0)),
            "long dip": run(fails(0.3, 75)),
            "too little": run(fails(0.1, 70)),
            "nine tenths of the load": run(times(0.9, fails(0.1, 75))),
        },
        {"two repetitions": run(fails(0.1, 75), (1, 1))},
    )


def lowest(figure_limit: float, faults: list[tuple[str, float, float | None]]) -> Cases:
    """Return cases of figures 9c, 9d, 11 and 19a: no bin of 200 ms may be below the paper's lowest value."""

    def run(
        low: float, before: float = 100.0, spread: tuple[float, ...] = STEADY, load: float = 1.0
    ) -> Result:
        rate = lambda t: before if 0.4 <= t < 0.6 else low if 1.4 <= t < 1.6 else 100  # noqa: E731
        made = over_time(times(load, rate), 3, faults=faults, spread=spread)
        return result(flow_of("stream", 3), {"mrc": made})

    just_below = 100 * figure_limit - 1
    return Cases(
        run(100 * figure_limit + 0.2),
        {
            "just below the paper's": run(just_below),
            "a quarter gone": run(75),
            "a tenth of the load": run(100, load=0.1),
        },
        {"as low before": run(just_below, just_below), "two repetitions": run(100, spread=(1, 1))},
    )


def fig19a() -> Cases:
    faults = [(f"p0-t0-0:p0-t1-{i}", float(i), None) for i in (1, 2, 3)]

    def run(rate: Rate, spread: tuple[float, ...] = STEADY) -> Result:
        made = over_time(times(FULL["stream"], rate), 4, faults=faults, spread=spread)
        return result(flow_of("stream", 4), {"mrc": made}, spines("100 Mbit/s"))

    return Cases(
        run(lambda t: 100),
        {
            "dips": run(dipping(lambda t: 100, 0.02)),
            "steps": run(steps([1, 0.75, 0.5, 0.25])),
            "a tenth of the load": run(lambda t: 10),
        },
        {"two repetitions": run(lambda t: 100, (1, 1))},
    )


T0_LINKS: list[tuple[str, float, float | None]] = [("p0-t0-0:p0-t1-1", 1.0, 2.0)]
