"""Bad results that judges must reject: each function takes a good result and spoils it in one way.

The functions work for the results of any figure. If there is nothing to spoil, a result stays unchanged.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from tests.support.made_results import Result

Spoil = Callable[[Result], None]
RATES = ("goodput_mbps", "flow_mbps", "busbw_gbps", "algbw_gbps")
TIMES = ("latency_us", "step_us", "time_us")


def ours(result: Result) -> Iterator[dict[str, Any]]:
    """Yield the MRC transports of a result."""
    for part in result["transports"].values():
        if part["kind"].startswith("mrc"):
            yield part


def felt(result: Result) -> list[dict[str, Any]]:
    """Return the faults of MRC transports that caused losses of packets."""
    mrc = {name for name, part in result["transports"].items() if part["kind"].startswith("mrc")}
    return [trial for trial in result["trials"] if trial["felt"] and trial["transport"] in mrc]


def wrong_bytes(result: Result) -> None:
    for part in ours(result):
        part["integrity"] = "5 bytes wrong"


def wrong_bytes_in_trials(result: Result) -> None:
    for trial in felt(result):
        trial["integrity"] = "5 bytes wrong"


def half_failed(result: Result) -> None:
    for part in ours(result):
        for sample in part["samples"][::2]:
            sample["failure"] = "a queue pair failed"


def one_failed(result: Result) -> None:
    for part in ours(result):
        for sample in part["samples"][-1:]:
            sample["failure"] = "a queue pair failed"


def recovered_before_detected(result: Result) -> None:
    for trial in felt(result):
        trial |= {"first_loss_us": 500.0, "detected_us": 100.0, "rerouted_us": 90.0, "recovered_us": 50.0}


def never_recovered(result: Result) -> None:
    for trial in felt(result):
        if trial["recovered_us"] is not None:
            trial["recovered_us"] = None


def used_until_the_repair(result: Result) -> None:
    for trial in felt(result)[3:]:
        if trial["rerouted_us"] is not None:
            trial["rerouted_us"] = None


def one_repetition_again(result: Result) -> None:
    """Copy the first repetition, and the first fault, over all others."""
    for part in result["transports"].values():
        for kind in ("samples", "series"):
            first = part[kind][:1]
            part[kind] = [{**row, "repetition": i} for i in range(len(part[kind])) for row in first]
    result["trials"] = [{**trial, "fault": result["trials"][0]["fault"]} for trial in result["trials"]]


def one_seed(result: Result) -> None:
    for part in result["transports"].values():
        for kind in ("samples", "series"):
            for row in part[kind]:
                row["repetition"] = 0
    for trial in result["trials"]:
        trial["fault"] = result["trials"][0]["fault"]
        trial["repetition"] = 0


def ten_times_the_rate(result: Result) -> None:
    _scale(result, 10.0)


def a_tenth_of_the_rate(result: Result) -> None:
    _scale(result, 0.1)


def infinite_rates(result: Result) -> None:
    _scale(result, float("inf"), ("samples",))


def negative_times(result: Result) -> None:
    for part in result["transports"].values():
        for sample in part["samples"]:
            for name, values in sample["metrics"].items():
                if name.partition("@")[0] in TIMES:
                    sample["metrics"][name] = [-abs(v) for v in values]


def no_validity(result: Result) -> None:
    del result["valid"]


def not_valid(result: Result) -> None:
    result["valid"] = False


def five_of_all(result: Result) -> None:
    """Keep only five repetitions, too few for an interval."""
    for part in result["transports"].values():
        for kind in ("samples", "series", "path_events", "links"):
            if kind in part:
                part[kind] = [row for row in part[kind] if row.get("repetition", 0) < 5]
    seen: dict[str, int] = {}
    kept = []
    for trial in result["trials"]:
        seen[trial["transport"]] = seen.get(trial["transport"], 0) + 1
        if trial["repetition"] < 5 and seen[trial["transport"]] <= 5:
            kept.append(trial)
    result["trials"] = kept


def swollen_queue(result: Result) -> None:
    """Set a detection time of 300 ms and an RTT of 90 ms, as if the run had filled a long queue."""
    for trial in felt(result):
        if trial["detected_us"] is not None and trial["rtt_us"]:
            begin = trial["first_loss_us"] or 0.0
            trial |= {"rtt_us": 90_000.0, "detected_us": begin + 300_000.0, "rerouted_us": begin}
            trial["recovered_us"] = begin + 400_000.0


def _scale(result: Result, factor: float, kinds: tuple[str, ...] = ("samples", "series")) -> None:
    for part in result["transports"].values():
        for sample in part["samples"] if "samples" in kinds else ():
            for name, values in sample["metrics"].items():
                base = name.partition("@")[0]
                if base in RATES:
                    sample["metrics"][name] = [v * factor for v in values]
                elif base == "time_us":
                    sample["metrics"][name] = [v / factor for v in values]
        for series in part["series"] if "series" in kinds else ():
            series["bytes"] = [round(v * factor) for v in series["bytes"]]


SPOILS: dict[str, Spoil] = {
    spoil.__name__: spoil
    for spoil in (
        wrong_bytes,
        wrong_bytes_in_trials,
        half_failed,
        one_failed,
        recovered_before_detected,
        never_recovered,
        used_until_the_repair,
        one_repetition_again,
        one_seed,
        ten_times_the_rate,
        a_tenth_of_the_rate,
        infinite_rates,
        negative_times,
        no_validity,
        not_valid,
        five_of_all,
        swollen_queue,
    )
}


def spoilt(good: Result, way: str) -> Result | None:
    """Return a copy that is spoilt in one way, or None if this way changes nothing in the result."""
    found = copy.deepcopy(good)
    SPOILS[way](found)
    return None if found == good else found
