"""Measure how evenly MRC's rotation fills links under full load, for each option of the rotation.

    python benchmarks/full_load.py flows [--uplinks 16] [--evs 0] [--seeds 6]
    python benchmarks/full_load.py queue-pairs [--queue-pairs 1,8] [--seeds 6]

`flows`: one plane has as many steady flows as uplinks. Each flow sends from one rack to the other at its
NIC's full rate, 100 Gbit/s, under NSCC. In theory every uplink is full all the time, so goodput is the links'
whole payload rate. `--evs N` uses N random EVs, which switches hash, instead of one path for each T1.
`queue-pairs`: one NIC of 4 x 100 Gbit/s sends to another over 2 uplinks a plane, by 1 or more queue pairs.
Only the last half of the time is measured. The output has the mean over the seeds, its standard error, and
the least value. Each `--option NAME=VALUE` is a variant; commas join several options of one variant.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from benchmarks.kit.loads import MTU, RATE_GIGABITS, Load, fabric_of, frame_bytes  # noqa: E402
from benchmarks.kit.results import machine  # noqa: E402
from mrclab.hosts import compiled  # noqa: E402


def flows(uplinks: int, evs: int, duration_ns: int, options: dict[str, Any], seed: int) -> list[float]:
    """Return the mean and the least goodput (ideal: 1), the share of marked packets, and the trims."""
    fabric = fabric_of(1, 2, uplinks, 2 * uplinks)
    names = [host.name for host in fabric.hosts]
    if evs:
        options = {**options, "ev_mode": "ecmp", "max_active_evs": evs}
    load = Load(fabric, options, seed)
    for src, dst in zip(names[:uplinks], names[uplinks:], strict=True):
        load.flow(src, dst)
    rates, marks, trims = load.measure(duration_ns)
    ideal = RATE_GIGABITS * MTU / frame_bytes(options)
    return [sum(rates) / uplinks / ideal, min(rates) / ideal, marks, trims]


def queue_pairs(count: int, duration_ns: int, options: dict[str, Any], seed: int) -> list[float]:
    """Return the Gbit/s of a NIC and of the slowest queue pair, the share of marked packets, the trims."""
    fabric = fabric_of(4, 2, 2, 4)
    names = [host.name for host in fabric.hosts]
    load = Load(fabric, options, seed)
    for pair in ((names[0], names[2]), (names[1], names[3])):
        for _ in range(count):
            load.flow(*pair)
    rates, marks, trims = load.measure(duration_ns)
    return [sum(rates) / 2, min(rates), marks, trims]


def report(name: str, rows: list[list[float]], what: tuple[str, ...]) -> None:
    """Print the mean of each value and its standard error."""
    cells = []
    for title, values in zip(what, zip(*rows, strict=True), strict=True):
        error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
        cells.append(f"{title} {statistics.mean(values):.4g} +- {error:.2g} [{min(values):.4g}]")
    print(f"{name or 'usual':44} n {len(rows)}: " + ", ".join(cells), flush=True)


def variant(words: str) -> dict[str, Any]:
    """Return the options in ``NAME=VALUE,NAME=VALUE``. A value that is not JSON is a string."""
    options: dict[str, Any] = {}
    for word in filter(None, words.split(",")):
        name, _, value = word.partition("=")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def main() -> None:
    """Measure all variants with the first seed, then all with the next seed, and so on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("flows", "queue-pairs"))
    parser.add_argument("--uplinks", type=int, default=16)
    parser.add_argument("--evs", type=int, default=0, help="random EVs, which switches hash")
    parser.add_argument("--queue-pairs", default="1,8")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--microseconds", type=int, default=1000)
    parser.add_argument("--option", action="append", default=None, help="a variant: NAME=VALUE,NAME=VALUE")
    args = parser.parse_args()
    print(f"{machine()}; {compiled.describe()}", flush=True)
    gc.disable()
    variants = args.option or ["", "ev_health=false"]
    duration_ns = args.microseconds * 1000
    counts = [int(word) for word in args.queue_pairs.split(",")]
    found: dict[str, list[list[float]]] = {}
    for seed in range(1, args.seeds + 1):
        for words in variants:
            options = variant(words)
            if args.what == "flows":
                row = flows(args.uplinks, args.evs, duration_ns, options, seed)
                found.setdefault(words, []).append(row)
            else:
                for count in counts:
                    row = queue_pairs(count, duration_ns, options, seed)
                    found.setdefault(f"{count} QPs {words}", []).append(row)
            gc.collect()
    what = ("all", "slowest", "marked", "trims")
    for name, rows in found.items():
        report(name, rows, what)


if __name__ == "__main__":
    main()
