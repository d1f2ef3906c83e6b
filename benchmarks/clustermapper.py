"""Measure how soon and how reliably Clustermapper names a bad part, and whether load causes wrong verdicts.

    python benchmarks/clustermapper.py [faults] [--topology lab] [-n 100] [--seed 1] [--interval-us 1000]
    python benchmarks/clustermapper.py load [--topology lab] [--minutes 10] [--interval-us 1000]

Needs root; ebpf target, a separate fabric (MRCLAB_PREFIX). `faults` makes one fault after another, of all
kinds that probes can detect, and waits until Clustermapper names the place. The time is measured from the
moment when the fault is in force to the verdict (CLOCK_MONOTONIC). The outcome is right if only the fault's
place was named until the verdict was cleared. With `load`, half of the hosts write to the other half as fast
as they can (`mrclab perf write_bw`, again and again). Without a fault, every verdict is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from mrclab.faults.kinds import Direction, Fault
from mrclab.testbed.clustermapper import ClustermapperProcess
from mrclab.testbed.lab import Lab
from mrclab.testbed.names import Names
from mrclab.topologies import Fabric, load_fabric

TIMEOUT_S = 10.0
LOOK_S = 0.005
LOAD_MESSAGE_BYTES = 1 << 20


def chosen(fabric: Fabric, count: int, seed: int) -> Iterator[Fault]:
    """Yield ``count`` random faults: silent cuts and losses of links in any direction, and dead switches."""
    rng = random.Random(seed)
    links = [link.name for link in fabric.links]
    switches = [switch.name for switch in fabric.switches]
    directions: tuple[Direction, ...] = ("both", "up", "down")
    for number in range(count):
        match number % 5:
            case 0 | 1 | 2:
                yield Fault("blackhole", rng.choice(links), directions[number % 5])
            case 3:
                yield Fault(
                    "loss", rng.choice(links), rng.choice(directions), ratio=rng.choice((0.1, 0.3, 0.5))
                )
            case _:
                yield Fault("switch-death", rng.choice(switches))


def await_event(
    mapper: ClustermapperProcess, since: int, name: str, place: str | None
) -> dict[str, Any] | None:
    """Return the first event of that name (and place) after ``since`` events, or None after a time limit."""
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        for event in mapper.events()[since:]:
            if event["event"] == name and place in (None, event.get("place")):
                return event
        time.sleep(LOOK_S)
    return None


def measure_faults(lab: Lab, mapper: ClustermapperProcess, faults: Sequence[Fault]) -> list[dict[str, Any]]:
    """Make and undo each fault. Return Clustermapper's verdicts and their times."""
    trials = []
    for fault in faults:
        since = len(mapper.events())
        lab.faults.prepare(fault)
        lab.faults.wait_prepared(fault)
        moment = lab.faults.apply(fault)
        verdict = await_event(mapper, since, "verdict", fault.where)
        lab.faults.undo(fault.where)
        if verdict is not None:
            await_event(mapper, since, "cleared", fault.where)
        named = [e["place"] for e in mapper.events()[since:] if e["event"] == "verdict"]
        trials.append(
            {
                "kind": fault.kind,
                "where": fault.where,
                "direction": fault.direction,
                "ratio": fault.ratio,
                "verdict_ms": None if verdict is None else (verdict["t_ns"] - moment.t_after_ns) / 1e6,
                "named": named,
                "right": named == [fault.where],
            }
        )
        print(trials[-1], file=sys.stderr)
    return trials


def keep_writing(fabric: Fabric, environment: dict[str, str], seconds: float) -> float:
    """Write for ``seconds`` from half of the hosts to the other half. Return the gigabytes written."""
    half = len(fabric.hosts) // 2
    pairs = [(fabric.hosts[i].name, fabric.hosts[i + half].name) for i in range(half)]
    end = time.monotonic() + seconds
    written = 0.0
    while time.monotonic() < end:
        running = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "mrclab",
                    "perf",
                    "write_bw",
                    "--from",
                    a,
                    "--to",
                    b,
                    "-s",
                    str(LOAD_MESSAGE_BYTES),
                    "-n",
                    "1000",
                ],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for a, b in pairs
        ]
        for process in running:
            _, said = process.communicate()
            if process.returncode:
                print(f"a writer ended with code {process.returncode}: {said.strip()}", file=sys.stderr)
            else:
                written += 1000 * LOAD_MESSAGE_BYTES / 1e9
    return written


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Return n, p50, p99 and max of the values."""
    if not values:
        return {"n": 0}
    p50, p99 = np.percentile(values, (50, 99))
    return {
        "n": len(values),
        "p50": round(float(p50), 2),
        "p99": round(float(p99), 2),
        "max": round(max(values), 2),
    }


def main() -> None:
    """Measure and print the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("faults", "load"), default="faults")
    parser.add_argument("--topology", default="lab")
    parser.add_argument("-n", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--interval-us", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    fabric, names = load_fabric(args.topology), Names.from_environment()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        lab = stack.enter_context(Lab.up(fabric, "ebpf", directory, names=names))
        path = directory / "events.jsonl"
        mapper = stack.enter_context(ClustermapperProcess(lab.network, path, args.interval_us * 1000))
        if await_event(mapper, 0, "probing", None) is None:
            raise SystemExit("clustermapper does not probe")
        if args.what == "faults":
            time.sleep(1.0)
            trials = measure_faults(lab, mapper, list(chosen(fabric, args.n, args.seed)))
            hard = [t["verdict_ms"] for t in trials if t["verdict_ms"] is not None and t["kind"] != "loss"]
            lossy = [t["verdict_ms"] for t in trials if t["verdict_ms"] is not None and t["kind"] == "loss"]
            result: dict[str, Any] = {
                "faults": len(trials),
                "right": sum(t["right"] for t in trials),
                "verdict_ms": {"dead": quantiles(hard), "lossy": quantiles(lossy)},
                "wrong": [t for t in trials if not t["right"]],
            }
        else:
            start = time.monotonic()
            environment = {**os.environ, "MRCLAB_PREFIX": names.prefix}
            written = keep_writing(fabric, environment, args.minutes * 60)
            result = {
                "minutes": round((time.monotonic() - start) / 60, 2),
                "gigabytes_written": round(written, 1),
                "verdicts": [e for e in mapper.events() if e["event"] == "verdict"],
                "deaf": sum(e["event"] == "deaf" for e in mapper.events()),
            }
        reports = [e for e in mapper.events() if e["event"] == "report"]
        result["prober"] = reports[-1] if reports else None
    print(json.dumps(result, indent=None if args.json else 1))


if __name__ == "__main__":
    main()
