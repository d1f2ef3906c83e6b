"""How many queue pairs it takes: MRC and RoCEv2 with 1 to 64 to each peer."""

from __future__ import annotations

from mrclab.experiments.judging.criteria import at_least, leads, within
from mrclab.experiments.judging.phases import LEVEL_MARGIN
from mrclab.experiments.judging.readings import Result, by_repetition, mean_of, transport_of
from mrclab.experiments.judging.scale import full_mbps
from mrclab.experiments.judging.verdict import Check, Verdict, all_hold
from mrclab.experiments.result.statistics import ratio_interval

PAPER = (
    "MRC's victim has 389 Gbit/s with 1 QP and with 8 (figures 18 and 21); a permutation runs at 390 a flow "
    "with 1 QP; PFC at 245 on average with 1 QP and at 323 with 8 (figure 20)"
)
SAME_SOURCE = "paper: 389 Gbit/s with 1 and with 8 queue pairs, to the 1 % of its figures"
FULL = 390 / 392
FULL_SOURCE = "paper, figure 20: about 390 of 392 Gbit/s for each flow of a permutation"
LEAD_SOURCE = "paper, figure 20: 390 against 245 Gbit/s a flow with 1 queue pair"
MORE_SOURCE = "paper, figure 20: 323 against 245 Gbit/s a flow; theory: more hashes share more evenly"


def judge(result: Result) -> Verdict:
    """MRC fills its NIC with one queue pair and has the same goodput with any number.

    RoCEv2 gains by more of them, and MRC leads it with one.
    """
    names = result["transports"]
    judged = [name for name in names if not one_rotation(result, name)]
    mrc, roce = ({qps_of(result, n): n for n in judged if kind_of(result, n) == kind} for kind in KINDS)
    if len(mrc) < 2 or len(roce) < 2:
        return all_hold([Check("numbers of queue pairs", "fewer than two", None, SAME_SOURCE)])
    one = goodput(result, mrc[min(mrc)])
    whole = full_mbps(result, mrc[min(mrc)])
    asked = f"MRC with {min(mrc)} over its links' capacity"
    checks = [at_least(asked, mean_of([rate / whole for rate in one]), FULL, FULL_SOURCE)]
    checks += [
        within(
            f"MRC with {number} over MRC with {min(mrc)}",
            ratio_interval(goodput(result, mrc[number]), one),
            1.0,
            LEVEL_MARGIN,
            SAME_SOURCE,
        )
        for number in sorted(mrc)[1:]
    ]
    few, many = goodput(result, roce[min(roce)]), goodput(result, roce[max(roce)])
    asked = f"RoCEv2 with {max(roce)} over RoCEv2 with {min(roce)}"
    checks.append(leads(asked, ratio_interval(many, few), MORE_SOURCE))
    checks.append(leads("MRC with 1 over RoCEv2 with 1", ratio_interval(one, few), LEAD_SOURCE))
    return all_hold(checks)


KINDS = ("mrc", "rocev2")


def kind_of(result: Result, name: str) -> str:
    """Return the kind of a transport's endpoints."""
    return str(transport_of(result, name).get("kind", ""))


def one_rotation(result: Result, name: str) -> bool:
    """Return True if all queue pairs to a peer share one rotation: shown next to the others, not judged."""
    return bool(transport_of(result, name).get("options", {}).get("ev_sets") == "peer")


def qps_of(result: Result, name: str) -> int:
    """Return how many queue pairs a transport has to each peer."""
    return int(transport_of(result, name).get("options", {}).get("qps", 1))


def goodput(result: Result, name: str) -> list[float]:
    """Return the goodput of each repetition, Mbit/s."""
    return by_repetition(result, name, "goodput_mbps")
