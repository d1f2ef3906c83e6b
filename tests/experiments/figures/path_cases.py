"""Made-up results for the judges of figures 4 to 8, 12 and 14, and of reboots."""

from __future__ import annotations

from typing import Any

from mrclab.experiments.spec.graph_workloads import Ddp
from tests.support.made_results import (
    STEADY,
    Cases,
    Result,
    events,
    flow_of,
    like_thin,
    metrics,
    over_time,
    result,
    training,
    trial,
)


def fig04() -> Cases:
    def run(first: int, last: int, blind: int = 1, per_pair: int = 4, left_out: int = 0) -> Result:
        def lost(t: float) -> float:
            return first if 0 <= t < 2 else last if t >= 8 else 0

        mrc = over_time(lambda t: 80, 12, lost) | metrics(flow_mbps=[20, 20, 20, 20])
        mrc |= {"options": {"qps": 8}} | events(lost=[[1.0, 0, 1, 1]] * per_pair * 32, left_out=left_out)
        return result(
            flow_of("permutation", 12, ranks=4),
            {"mrc": mrc, "oblivious": over_time(lambda t: 80, 12, lambda t: blind)},
        )

    return Cases(
        run(5, 0),
        {"a fifth is left": run(5, 1), "six a queue pair": run(5, 0, per_pair=6)},
        {
            "too few to show so deep a fall": run(1, 0),
            "links are not dead": run(5, 0, blind=0),
            "events cut": run(5, 0, left_out=1),
        },
    )


def fig05() -> Cases:
    calm = [235_000.0 + 10 * i for i in range(40)]

    def run(mrc: list[float], felt: bool = True, control: list[float] = calm) -> Result:
        parts = {"mrc": metrics(step_us=mrc), "control": metrics(step_us=control)}
        return result(training(), parts, trials=[trial("mrc", felt=felt, rtt_us=2500.0)])

    def slower(by_us: float, every: int) -> list[float]:
        return [step + by_us * (i % every == 0) for i, step in enumerate(calm)]

    return Cases(
        run(slower(5000, 20)),
        {
            "2 % slower": run([1.02 * step for step in calm]),
            "a step of two bypasses more": run(slower(25_000, 40)),
            "1.25 times in the tail": run(slower(58_000, 10)),
        },
        {
            "no flap was felt": run(calm, felt=False),
            "uneven control": run(slower(5000, 20), control=[c * (1 + i % 2) for i, c in enumerate(calm)]),
        },
    )


def fig06() -> Cases:
    """A step takes 290 ms with four links, and 380 ms with three: 0.76 of the speed."""
    wire_us = 1.5 * 2 * 2**20 * 8 / (100 * 4096 / 4234)
    share = 290_000 / (290_000 + wire_us / 3)

    def run(
        down: float,
        after: float = 1.0,
        inside: int = 20,
        outside: int = 0,
        spread: tuple[float, ...] = STEADY,
    ) -> Result:
        def rate(t: float) -> float:
            return 100 * down if 3 <= t < 6 else 100 if t < 3 else 100 * after

        def lost(t: float) -> float:
            return inside if 3 <= t < 3.02 else outside if t > 7 else 0

        made = over_time(rate, 9, lost, [("h0-eth3", 3, 6)], spread) | metrics(comm_us=[285_000.0])
        return result(training(size_bytes=2 * 2**20, compute_ns=5_000_000), {"mrc": made})

    return Cases(
        run(share),
        {
            "deeper than the link's share": run(share - 0.1),
            "no dip": run(1.0),
            "never back": run(share, share),
            "losses go on": run(share, outside=1),
        },
        {"two repetitions": run(share, spread=(1, 1)), "the flap took nothing": run(share, inside=0)},
    )


def fig08() -> Cases:
    """Return the cases of figure 8. Its loss limit, 0.0014 %, is 0.77 packets in a minute at 30 Mbit/s."""

    def run(
        died: int = 30,
        returned: int = 0,
        low: float = 1.0,
        after: float = 1.0,
        hit: int = 32,
        rate: float = 1200.0,
        spread: tuple[float, ...] = STEADY,
        left_out: int = 0,
    ) -> Result:
        def lost(t: float) -> float:
            return died if 1 <= t < 1.004 else returned if 2.5 <= t < 2.504 else 0

        def rates(t: float) -> float:
            return rate * (low if 1 <= t < 1.4 else after if t >= 2.5 else 1)

        made = over_time(rates, 4, lost, [("p2-t1-1", 1, 2.5)], spread) | metrics(spread, flow_mbps=[30] * 4)
        made |= {"options": {"qps": 16, "max_active_evs": 8}}
        made |= events(len(spread), left_out, lost=[[1.0, 0, number, 1] for number in range(hit)])
        return result(flow_of("permutation", 4, ranks=4), {"mrc": made}, like_thin("100 Mbit/s"))

    return Cases(
        run(),
        {
            "ten times the losses": run(300),
            "losses with the reboot": run(returned=15),
            "a third of the rate gone": run(low=0.67),
            "all queue pairs hit": run(hit=64),
            "a tenth of the rate stays away": run(after=0.9),
        },
        {"too few losses": run(2), "two repetitions": run(spread=(1, 1)), "events cut": run(left_out=1)},
    )


def fig12() -> Cases:
    ev, same, other = 0xC001, 0xC003, 0x1C003

    def run(
        low: float = 100,
        waits_us: float = 5000,
        new: int | None = same,
        lasting: int = 0,
        spread: tuple[float, ...] = STEADY,
        left_out: int = 0,
        retired: bool = True,
        felt: bool = True,
        load: float = 1.0,
    ) -> Result:
        rate = lambda t: load * (low if 1 <= t < 1.2 else 100)  # noqa: E731
        faults = [("p0-t0-0:p0-t1-1", 1.0, None)]
        replaced = [] if new is None else [[1_005_000.0, 0, 17, ev, new]]
        gone = [[1_005_000.0, 0, 17, ev]] if retired else []
        mrc = over_time(rate, 3, lambda t: lasting if t > 1.5 else 0, faults, spread)
        mrc |= events(len(spread), left_out, retired=gone, replaced=replaced)
        blind = over_time(lambda t: 100, 3, lambda t: 2 if t > 1 else 0, faults)
        times = {"first_loss_us": 100.0, "detected_us": 100.0 + waits_us, "rtt_us": 2600.0}
        times |= {"felt": felt}
        trials = [trial("mrc", number, **times) for number in range(len(spread))]
        return result(flow_of("stream", 3), {"mrc": mrc, "oblivious": blind}, trials=trials)

    return Cases(
        run(),
        {
            "2 % less": run(low=98),
            "retired late": run(waits_us=50_000),
            "a tenth of the load": run(load=0.1),
            "not replaced": run(new=None),
            "replaced in another plane": run(new=other),
            "a tenth of the losses lasts": run(lasting=1),
        },
        {
            "two repetitions": run(spread=(1, 1)),
            "events cut": run(left_out=1),
            "no EV was retired": run(retired=False),
            "no packet was taken": run(felt=False),
        },
    )


def fig14() -> Cases:
    shared = {
        "name": "shared",
        "planes": 2,
        "t0": 3,
        "t1": 2,
        "hosts": 6,
        "links": {
            "host": {"rate": "25 Mbit/s"},
            "fabric": {"rate": "25 Mbit/s"},
            "except": [{"link": [f"p{p}-t0-1", f"p{p}-t1-1"], "absent": True} for p in (0, 1)],
        },
    }
    more = {"second_src": "h2", "second_dst": "h5", "second_at_ns": 2 * 10**9, "second_rate_bps": 40_000_000}
    asked = flow_of("join", 4, src="h0", dst="h4", **more) | {"rate_bps": 30_000_000}

    def transport(
        after: float, rate: float = 70, marks: int = 9, lost: int = 0, spread: tuple[float, ...] = STEADY
    ) -> dict[str, Any]:
        links = [
            {
                "repetition": number,
                "start_us": 0,
                "bin_us": 100_000,
                "bytes": {"p0-t0-2:p0-t1-1": [100] * 20 + [round(100 * f * after)] * 20},
            }
            for number, f in enumerate(spread)
        ]
        made = over_time(lambda t: 30 if t < 2 else rate, 4, spread=spread) | {"links": links}
        skipped: Any = {"0xc000": marks} if marks else {}
        return made | events(len(spread), lost=[[1.0, 0, 1, 1]] * lost, skipped=skipped)

    def run(mrc: dict[str, Any], blind: float = 1.0) -> Result:
        return result(asked, {"mrc": mrc, "oblivious": transport(blind)}, shared)

    return Cases(
        run(transport(1.8)),
        {
            "does not move": run(transport(1.0)),
            "moves less than it must": run(transport(1.3)),
            "loses packets": run(transport(1.8, lost=1)),
            "a flow is short of its rate": run(transport(1.8, rate=65)),
            "a sender without EV health moves more": run(transport(1.8), blind=2.5),
        },
        {"no marks": run(transport(1.8, marks=0)), "two repetitions": run(transport(1.8, spread=(1, 1)))},
    )


def t1_reboot() -> Cases:
    calm = [235_000.0 + 10 * i for i in range(40)]

    def run(
        worst: float, stall: float = 1.6e6, failed: bool = False, felt: bool = True, ours: bool = False
    ) -> Result:
        conventional = metrics(step_us=calm, stalled_us=[0.0, stall])
        if failed:
            conventional = {"samples": [{"failure": "a queue pair failed", "metrics": {}}] * 6}
        mrc = metrics(step_us=[*calm, worst])
        if ours:
            mrc["samples"][1]["failure"] = "a queue pair failed"
        parts = {
            "mrc": mrc,
            "control": metrics(step_us=calm),
            "bgp-hold": conventional | {"routing": "ecmp"},
        }
        return result(training(), parts, trials=[trial("mrc", felt=felt, rtt_us=2500.0)])

    return Cases(
        run(240_000),
        {
            "MRC stalls": run(500_000),
            "a job with MRC fails": run(240_000, ours=True),
            "the other does not": run(240_000, stall=200_000),
        },
        {"not felt": run(240_000, felt=False)},
    )


def transformer() -> Cases:
    """The ACK timer is 33.6 ms. With four ranks, a step may stall for four ACK timers, 134 ms."""
    calm = [float(i) for i in range(30)]

    def run(
        worst_us: float = 130_000,
        ours: str = "aa",
        control: str = "aa",
        alone: str | None = "aa",
        differ_at: int | None = None,
        conventional_us: float = 3e6,
        felt: bool = True,
        ended: bool = True,
    ) -> Result:
        def trained(digest: str) -> Result:
            account = {
                "parameters_sha256": digest,
                "alone_sha256": alone,
                "parameters_differ_at": differ_at,
            }
            return {"details": [{"repetition": n, "training": account} for n in range(6)]}

        mrc = metrics(stalled_us=[*calm, worst_us], spread=(0.99, 0.995, 0.998, 1, 1.005, 1.01)) | trained(
            ours
        )
        if not ended:
            mrc["samples"][1]["failure"] = "a queue pair failed"
        parts = {
            "mrc": mrc | {"options": {"ack_timeout_exponent": 15}},
            "control": metrics(stalled_us=calm) | trained(control),
            "rocev2": metrics(stalled_us=[*calm, conventional_us]) | {"routing": "ecmp"},
        }
        asked = {"kind": "transformer", "ranks": 4}
        return result(asked, parts, trials=[trial("mrc", felt=felt)])

    return Cases(
        run(),
        {
            "a step stalls for longer than detection takes": run(200_000),
            "other bits than without faults": run(control="bb"),
            "other bits than one process": run(alone="bb"),
            "other bits on the way": run(differ_at=3),
            "a job fails": run(ended=False),
            "the other does not stall": run(conventional_us=200_000),
        },
        {
            "not felt": run(felt=False),
            "nobody computed it alone": run(alone=None),
            "between the limits": run(134_000),
        },
    )


def training_124m() -> Cases:
    """The job has two steps, the second without one plane. It must keep at least 0.73 of its throughput."""

    def run(
        exposed_us: float = 7_400.0,
        ours: bool = False,
        theirs: bool = True,
        step_us: float = 53_000.0,
        failover_us: float = 590_000.0,
        noticed: float | None = 200.0,
    ) -> Result:
        parts = {
            "mrc": metrics(step_us=[53_500.0, 55_400.0], exposed_us=[5_500.0, exposed_us]),
            "rocev2": metrics(step_us=[53_000.0, step_us]),
            "rocev2-failover": metrics(step_us=[54_000.0, failover_us]),
        }
        if ours:
            parts["mrc"]["samples"][1]["failure"] = "a queue pair failed"
        for sample in parts["rocev2"]["samples"] if theirs else ():
            sample |= {"failure": "a queue pair failed", "metrics": {}}
        fault = {"kind": "plane-death", "where": "p2", "t_before_ns": 75 * 10**6}
        trials = [trial("mrc", fault=fault, detected_us=noticed)]
        asked = Ddp.model_validate({"kind": "ddp", "placement": "spread"}).model_dump()
        return result(asked, parts, trials=trials)

    return Cases(
        run(),
        {
            "more than a plane's share is missing": run(exposed_us=8_100.0),
            "a job with MRC fails": run(ours=True),
            "failover before the timeouts": run(failover_us=300_000.0),
        },
        {
            "not noticed": run(noticed=None),
            "RoCEv2 goes on": run(theirs=False),
        },
    )


def drain() -> Cases:
    faults = [("p1-t1-2", 1.0, 2.0), ("p2-t1-1", 3.5, 4.5)]

    def run(
        drained: int = 0,
        other: int = 2,
        level: float = 100,
        spread: tuple[float, ...] = STEADY,
        left_out: int = 0,
        load: float = 1.0,
    ) -> Result:
        rate = lambda t: load * (level if 1 <= t < 2 else 100)  # noqa: E731
        made = over_time(rate, 5, faults=faults, spread=spread)
        lost = [[1_100_000.0, 0, 1, 1]] * drained + [[3_600_000.0, 0, 1, 1]] * other
        made |= events(len(spread), left_out, lost=lost)
        return result(flow_of("stream", 5), {"mrc": made})

    return Cases(
        run(),
        {"a packet lost": run(drained=1), "2 % less": run(level=98), "a tenth of the load": run(load=0.1)},
        {
            "the other lost none": run(other=0),
            "two repetitions": run(spread=(1, 1)),
            "events cut": run(left_out=1),
        },
    )
