"""Made-up results for the judges of figures 16 to 21, of sweeps and of recovery times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.made_results import (
    EVEN,
    FAST,
    STEADY,
    WIDE,
    Cases,
    Result,
    flow_of,
    metrics,
    result,
    sample,
    trial,
)

SIZES = {"512KiB": 2.0**19 * 0.16, "2MiB": 2.0**21 * 0.016, "4MiB": 2.0**22 * 0.016}
"""The time of an operation in us at a bus bandwidth of 1 Gbit/s (at 0.1 Gbit/s for the smallest size)."""
PAPER = {
    "fig16": {"mrc": (375, 339, 151), "rocev2": (223, 193, 32), "rocev2-16qp": (362, 214, 28)},
    "fig17": {"mrc": (361, 331, 234), "rocev2": (327, 323, 126), "rocev2-16qp": (295, 298, 125)},
}


def collectives(figure: str) -> Cases:
    def run(
        spread: tuple[float, ...] = STEADY,
        small: float = 8.0,
        middle: float = 1.0,
        **other: tuple[float, ...],
    ) -> Result:
        """Return a result: MRC's bandwidths are 1 % above the paper's, and more at the smallest size."""
        values = PAPER[figure] | {name.replace("_", "-"): row for name, row in other.items()}
        parts = {}
        for name, row in values.items():
            for loss, gbps in zip(("", "-0.1%", "-1%"), row, strict=True):
                better = (1.01 if loss else 1.005) if name == "mrc" else 1.0
                times = {f"time_us@{size}": took / gbps / better for size, took in SIZES.items()}
                if name == "mrc" and loss:
                    times["time_us@512KiB"] /= small
                    times["time_us@2MiB"] /= middle
                parts[name + loss] = metrics(spread, **times)
        kind = "all-reduce" if figure == "fig16" else "all-to-all"
        return result({"kind": kind, "ranks": 0}, parts, FAST)

    mrc, roce, sixteen = (PAPER[figure][name] for name in ("mrc", "rocev2", "rocev2-16qp"))
    bad = {
        "keeps 0.7 at 0.1 %": run(mrc=(mrc[0], 0.7 * mrc[0], mrc[2])),
        "keeps 0.25 at 1 %": run(mrc=(mrc[0], mrc[1], 0.25 * mrc[0])),
        "RoCEv2 leads at 1 %": run(rocev2=(roce[0], roce[1], 500.0)),
        "RoCEv2 leads at 0.1 %": run(rocev2=(roce[0], 500.0, roce[2])),
        "RoCEv2 leads without loss": run(rocev2=(500.0, *roce[1:])),
        "RoCEv2 with 16 queue pairs leads at 1 %": run(rocev2_16qp=(*sixteen[:2], 500.0)),
        "RoCEv2 with 16 queue pairs leads at 0.1 %": run(rocev2_16qp=(sixteen[0], 500.0, sixteen[2])),
        "RoCEv2 with 16 queue pairs leads without loss": run(rocev2_16qp=(500.0, *sixteen[1:])),
        "RoCEv2 leads at the smallest size": run(small=0.01),
        "RoCEv2 leads at the middle size": run(middle=0.01),
    }
    if figure == "fig17":
        bad["equal at the smallest size"] = run(small=1.0)
    return Cases(run(EVEN), bad, {"wide": run(WIDE), "nothing ran": result({}, {"mrc": {}})})


def thin_flows(*rates: float, spread: tuple[float, ...] = STEADY) -> dict[str, Any]:
    return metrics(spread, flow_mbps=rates, goodput_mbps=sum(rates))


def fig18() -> Cases:
    def run(mrc: dict[str, Any], roce: float = 70.0, ten: float = 80.0) -> Result:
        parts = {"rocev2": thin_flows(24, 24, roce), "rocev2-10qp": thin_flows(24, 24, ten)}
        return result(flow_of("incast", 3), {"mrc": mrc, **parts})

    return Cases(
        run(thin_flows(24, 24.1, 96.5, spread=EVEN)),
        {
            "victim at 0.85": run(thin_flows(24, 24, 85)),
            "uneven": run(thin_flows(15, 24, 96.5)),
            "RoCEv2's victim does better": run(thin_flows(24, 24, 96.5), 99),
            "with 10 queue pairs RoCEv2's does nearly as well": run(thin_flows(24, 24, 96.5), ten=95),
            "equal": run(thin_flows(24, 24.1, 96.5, spread=EVEN), 96.5),
        },
        {"wide": run(thin_flows(24, 24.1, 96.5, spread=WIDE))},
    )


def over_pfc(
    *rates: float,
    spread: tuple[float, ...] = STEADY,
    dropped: int = 0,
    blocked: int = 9,
    **values: float,
) -> dict[str, Any]:
    """Return the results of a transport over links with PFC.

    Compute the results from the rates of its flows. Without rates, use the metrics in ``values``.
    """
    part = thin_flows(*rates, spread=spread) if rates else metrics(spread, **values)
    counters = {"frames_dropped": dropped, "blocked_packets": blocked}
    return part | {
        "lossless": "pfc",
        "one_plane": True,
        "samples": [sample | {"counters": counters} for sample in part["samples"]],
    }


def fig21() -> Cases:
    def run(mrc: dict[str, Any], **paused: dict[str, Any]) -> Result:
        others = {name.replace("_", "-"): part for name, part in paused.items()}
        return result(flow_of("incast", 3), {"mrc-8qp": mrc, **others})

    mrc = thin_flows(24, 24.1, 96.6, spread=EVEN)
    eight_pairs = {"options": {"qps": 8}}
    one, eight = over_pfc(24, 24, 20), over_pfc(24, 24, 5) | eight_pairs
    # In these repetitions the hash puts the victim on a link without other flows.
    alone = [sample(6 + number, {"flow_mbps": [24.0, 24.0, 97.0 + number]}) for number in range(2)]
    alone = [one["samples"][0] | made for made in alone]
    drawn = one | {"samples": [*one["samples"], *alone]}
    bad = {
        "victim at 0.85": run(thin_flows(24, 24, 85)),
        "uneven": run(thin_flows(15, 24, 96.5)),
        "PFC leaves its victim half": run(mrc, rocev2_1qp=over_pfc(24, 24, 48), rocev2_8qp=eight),
        "8 queue pairs do no harm": run(mrc, rocev2_1qp=one, rocev2_8qp=over_pfc(24, 24, 90) | eight_pairs),
        "PFC drops with one queue pair": run(
            mrc, rocev2_1qp=over_pfc(24, 24, 20, dropped=1), rocev2_8qp=eight
        ),
        "PFC drops with 8": run(mrc, rocev2_1qp=one, rocev2_8qp=over_pfc(24, 24, 5, dropped=1) | eight_pairs),
    }
    return Cases(run(mrc, rocev2_1qp=drawn, rocev2_8qp=eight), bad, {"no PFC": run(mrc)})


def fig22() -> Cases:
    def run(
        queue: float = 3.9,
        longest: float = 4,
        rate: float = 89,
        most: float = 79,
        depth: float = 2,
        dropped: int = 0,
    ) -> Result:
        def part(megabytes: float, gbps: float) -> dict[str, Any]:
            values = {"deepest_queue_bytes": megabytes * 1e6, "goodput_mbps": gbps * 1e3}
            return over_pfc(dropped=dropped, stop_depth=depth, **values)

        parts = {"default": part(20.5, 100), "aggressive": part(queue, rate)}
        parts["most-aggressive"] = part(longest, most)
        return result(flow_of("incast", 3), parts, FAST)

    return Cases(
        run(),
        {
            "the defaults pause nothing": run(depth=0.5),
            "as long a queue": run(queue=15),
            "as long a queue with the most aggressive": run(longest=15),
            "no cost": run(rate=99),
            "most aggressive costs less": run(most=95),
            "drops": run(dropped=2),
        },
        {"nothing ran": result({}, {"default": {}})},
    )


def lossless() -> Cases:
    def run(
        mrc: float = 96.6,
        pfc: float = 30,
        hashed: float = 40,
        apart: float = 97.0,
        slowest: float = 24,
        drops: str = "",
        free: str = "",
    ) -> Result:
        """Return a result. Transport ``drops`` loses a frame, and transport ``free`` never waits."""
        victims = {"rocev2-pfc": pfc, "rocev2-credits-ecmp": hashed, "rocev2-credits": apart}
        parts = {"mrc": thin_flows(slowest, 24.1, mrc, spread=EVEN)}
        for name, rate in victims.items():
            waited = 0 if name in (free, "rocev2-credits") else 9
            parts[name] = over_pfc(24, 24, rate, spread=EVEN, dropped=int(name == drops), blocked=waited)
        return result(flow_of("incast", 3), parts)

    bad = {
        "MRC's victim waits, too": run(mrc=80),
        "MRC's incast is uneven": run(slowest=15),
        "PFC's victim does not wait": run(pfc=120),
        "the victim of hashed flows on credits does not wait": run(hashed=120),
        "PFC drops": run(drops="rocev2-pfc"),
        "credits drop": run(drops="rocev2-credits"),
        "credits drop hashed flows": run(drops="rocev2-credits-ecmp"),
        "the victim apart waits": run(apart=60),
    }
    unclear = {
        "PFC blocked nothing": run(free="rocev2-pfc"),
        "credits blocked nothing": run(free="rocev2-credits-ecmp"),
    }
    return Cases(run(), bad, unclear)


PAIRS = {
    "name": "pairs",
    "planes": 4,
    "t0": 2,
    "t1": 2,
    "hosts": 4,
    "links": {"host": {"rate": "25 Mbit/s"}, "fabric": {"rate": "25 Mbit/s"}},
}


def fig20() -> Cases:
    """Each rack has two flows over two uplinks, so the two flows share an uplink in half of the cases."""

    def run(
        mrc: float, roce: list[list[float]], pfc: list[list[float]] | None = None, eight: float = 0
    ) -> Result:
        def hashed(rows: list[list[float]]) -> dict[str, Any]:
            made = [sample(i, {"flow_mbps": [r - i * 1e-4 for r in row]}) for i, row in enumerate(rows)]
            return {"samples": made, "one_plane": True}

        parts = {"mrc": thin_flows(mrc, 96.7, 96.7, 96.7, spread=EVEN), "rocev2": hashed(roce)}
        if pfc is not None:
            parts |= {"rocev2-pfc": hashed(pfc), "rocev2-pfc-8qp": hashed([[eight, 99.0]] * 8)}
        return result(flow_of("permutation", 3, ranks=4), parts, PAIRS)

    shared, alone = [48.0, 48.0, 96.0, 96.0], [96.0] * 4
    mixed = [shared, alone, [48.0] * 4, shared, [48.0] * 4, shared, alone, shared]
    return Cases(
        run(96.5, mixed, mixed, 94),
        {
            "MRC as uneven as 0.8": run(77, mixed),
            "PFC's flows never share": run(96.5, mixed, [alone] * 8, 94),
            "8 queue pairs are slower": run(96.5, mixed, mixed, 20),
            "8 queue pairs are as even as MRC": run(96.5, mixed, mixed, 99),
            "no flow ever shares": run(96.5, [alone] * 8),
            "equal to RoCEv2": run(96.5, [[96.5] * 4] * 8),
            "slower than RoCEv2": run(40, [alone] * 8),
            "slower than RoCEv2 under PFC": run(40, mixed, [alone] * 8, 94),
        },
        {"too few repetitions": run(96.5, mixed[:2])},
    )


def queue_pairs() -> Cases:
    def part(kind: str, qps: int, mbps: float, spread: tuple[float, ...] = STEADY) -> dict[str, Any]:
        return metrics(spread, goodput_mbps=4e3 * mbps) | {"kind": kind, "options": {"qps": qps}}

    def run(
        mrc64: float, roce64: float = 350, roce1: float = 250, spread: Any = STEADY, load: float = 1.0
    ) -> Result:
        parts = {
            "mrc-1qp": part("mrc", 1, 386 * load, spread),
            "mrc-64qp": part("mrc", 64, mrc64),
            "rocev2-1qp": part("rocev2", 1, roce1),
            "rocev2-64qp": part("rocev2", 64, roce64),
        }
        return result(flow_of("permutation", 3), parts, FAST)

    return Cases(
        run(386),
        {
            "less with 64": run(370),
            "nine tenths of the load": run(348, 320, 225, load=0.9),
            "more with 64": run(400),
            "RoCEv2 gains nothing": run(386, roce64=240),
            "RoCEv2 leads": run(386, roce1=390, roce64=400),
        },
        {"wide": run(386, spread=WIDE), "one number": result({}, {"mrc": part("mrc", 1, 386)})},
    )


def entropy_values() -> Cases:
    fan = {"name": "fan", "planes": 4, "t0": 2, "t1": 64, "hosts": 2}
    fan["links"] = {"host": {"rate": "16 Mbit/s"}, "fabric": {"rate": "1 Mbit/s"}}
    shares = {4: 1 / 16, 16: 1 / 4, 64: 1.0, 128: 1.0, 256: 1.0}

    def run(spread: tuple[float, ...] = EVEN, **other: float) -> Result:
        found = shares | {int(name[1:]): share for name, share in other.items()}
        parts = {
            f"evs-{count}": metrics(spread, goodput_mbps=64 * 4096 / 4234 * share)
            | {"options": {"max_active_evs": count}}
            for count, share in found.items()
        }
        return result(flow_of("stream", 4), parts, fan)

    return Cases(
        run(),
        {
            "4 carry more": run(e4=0.2),
            "16 at a fifth": run(e16=0.2),
            "64 carry less": run(e64=0.9),
            "128 carry less": run(e128=0.9),
            "256 carry less": run(e256=0.9),
        },
        {"wide": run(WIDE)},
    )


def bandwidth() -> Cases:
    def run(mrc: float, roce: float = 96.0, spread: tuple[float, ...] = EVEN) -> Result:
        parts = {"mrc": metrics(spread, goodput_mbps=mrc), "rocev2": metrics(spread, goodput_mbps=roce)}
        return result(flow_of("stream", 3), parts)

    return Cases(
        run(96.5), {"90 %": run(90), "RoCEv2 leads": run(96.5, 99)}, {"wide": run(96.5, spread=WIDE)}
    )


def latency() -> Cases:
    asked = {"kind": "request-response", "src": "auto", "dst": "auto", "message_bytes": 32}
    asked |= {"response_bytes": 32, "duration_ns": 10**9}

    def run(mrc: float, values: Callable[[float], list[float]] | None = None) -> Result:
        spread = values or (lambda v: [v + 0.01 * (i % 10) for i in range(200)])
        parts = {"mrc": metrics(latency_us=spread(mrc)), "rocev2": metrics(latency_us=spread(200.0))}
        parts["rocev2"] |= {"one_plane": True}
        return result(asked, parts, "lab")

    def few(value: float) -> list[float]:
        return [value * f for f in (0.5, 1.0, 1.5)]

    return Cases(run(203), {"10 % longer": run(220)}, {"few": run(203, few)})


def all_reduce() -> Cases:
    def run(gbps: float, spread: tuple[float, ...] = STEADY) -> Result:
        return result({}, {"mrc": metrics(spread, **{"busbw_gbps@32MiB": gbps})})

    return Cases(run(0.0945), {"70 %": run(0.07)}, {"one repetition": run(0.095, (1.0,))})


def bypass(detected: float, rerouted: float, n: int = 20, **more: Any) -> list[dict[str, Any]]:
    """Return trials with times in round trips of 50 us. The criterion allows 3.8 (median) and 7.6 (p90)."""
    return [
        trial(
            "mrc",
            **{
                "first_loss_us": 100.0 + i,
                "detected_us": 100 + i + 50 * detected + i % 3,
                "rerouted_us": 100 + i + 50 * rerouted + i % 3,
                "recovered_us": 900.0 + i,
                "rtt_us": 50.0,
                **more,
            },
        )
        for i in range(n)
    ]


LATE = {
    "detected after 5 round trips": [bypass(5, 1.5)],
    "rerouted after 5 round trips": [bypass(2, 5)],
    "two in five detected after 12 round trips": [bypass(2, 1.5, 12), bypass(12, 1.5, 8)],
    "two in five rerouted after 12 round trips": [bypass(2, 1.5, 12), bypass(2, 12, 8)],
    "used until the repair": [bypass(2, 1.5, 3), bypass(2, 1.5, 17, rerouted_us=None)],
}
"""Ways in which a sender fails to bypass a path in time."""


def link_kill() -> Cases:
    def run(*trials: Any) -> Result:
        return result({"kind": "spray"}, {"mrc": {}}, trials=[t for part in trials for t in part])

    lost = {**trial("mrc", first_loss_us=1.0, detected_us=2.0, rerouted_us=2.0, rtt_us=50.0)}
    return Cases(
        run(bypass(2, 1.5)),
        {
            **{words: run(*parts) for words, parts in LATE.items()},
            "a packet never came": run(bypass(2, 1.5), [lost]),
        },
        {"none was felt": run(bypass(2, 1.5, felt=False)), "two trials": run(bypass(2, 1.5, 2))},
    )


def headline() -> Cases:
    def routed(name: str, seconds: float, n: int = 6) -> list[dict[str, Any]]:
        times = [seconds * 1e6 * (1 + i / 100) for i in range(n)]
        return [trial(name, recovered_us=us + 9e6, recovered_since_loss_us=us, rtt_us=50.0) for us in times]

    def run(mrc: list[dict[str, Any]], hold: float = 3.0, bfd: float = 0.15, n: int = 6) -> Result:
        parts = {"mrc": {}, "bfd": {"detection_ns": 150_000_000}, "bgp-hold": {"detection_ns": 3 * 10**9}}
        trials = [*mrc, *routed("bfd", bfd, n), *routed("bgp-hold", hold, n)]
        return result({"kind": "stream"}, parts, trials=trials)

    # Here the first loss is long after the fault. This delay must not count against any transport.
    good = [t | {"recovered_us": 9e6, "recovered_since_loss_us": 300.0} for t in bypass(2, 1.5)]
    lost = good[0] | {"recovered_us": None}
    return Cases(
        run(good, hold=6.0),
        {
            "MRC late": run([t | {"recovered_since_loss_us": 200.0} for t in bypass(6, 6)]),
            **{words: run([t for part in parts for t in part]) for words, parts in LATE.items()},
            "routing within a second": run(good, hold=0.9),
            "BFD sooner than MRC": run(good, bfd=0.00001),
            "a packet never came": run([*good, lost]),
        },
        {
            "two faults": run(good, n=2),
            "none was felt": run([t | {"felt": False} for t in good]),
            "no routing": result({}, {"mrc": {}}, trials=good),
        },
    )
