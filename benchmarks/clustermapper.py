"""How soon and how reliably Clustermapper names the bad place, and whether it gives false verdicts under
load.

    python benchmarks/clustermapper.py [faults] [--topology lab] [-n 100] [--seed 1] [--interval-us 1000]
    python benchmarks/clustermapper.py load [--topology lab] [--minutes 10] [--interval-us 1000]

Needs root; ebpf target, a separate fabric (MRCLAB_PREFIX). `faults` breaks one place after another, by all
kinds of faults that probes can detect, and waits until it is named: from the end of the fault's own interval
to the verdict's time, both CLOCK_MONOTONIC. The outcome is right if the fault's place was named and nothing
else was until it was cleared again. `load` has half of the hosts write to the other half as fast as they can
(`mrclab perf write_bw`, all at once, again and again) and counts verdicts, of which each is wrong.
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
    """Return a seeded mixture: silent links of every kind and direction, lossy ones, dead switches."""
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
    """Return the first event of that name (and place) after ``since`` events; None if it does not come."""
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        for event in mapper.events()[since:]:
            if event["event"] == name and place in (None, event.get("place")):
                return event
        time.sleep(LOOK_S)
    return None


def measure_faults(lab: Lab, mapper: ClustermapperProcess, faults: Sequence[Fault]) -> list[dict[str, Any]]:
    """Make each fault and undo it; return the prober's reports, and their times."""
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
    """Full load from half of the hosts to the other half for so long; returns the gigabytes written."""
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
    """n, p50, p99 and max."""
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
    """Measures and prints."""
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
