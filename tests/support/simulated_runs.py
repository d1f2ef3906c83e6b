"""Short simulated runs with everything that a fabric does to packets, and a hash to compare two runs."""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from mrclab.experiments.measure.evidence import Evidence
from mrclab.experiments.spec.scenario import parse_scenario
from mrclab.experiments.virtual.engine import VirtualRepetition

LINKS = {"rate": "100 Gbit/s", "delay": "500 ns"}
TOPOLOGY = {"planes": 2, "t0": 2, "t1": 2, "hosts": 8, "links": {"host": LINKS, "fabric": LINKS}}
INCAST = {"kind": "incast", "senders": 4, "message_bytes": 16384, "depth": 16, "duration": "60 us"}
SMALL_BUFFERS = {"buffer": "48 KiB"}
DRAIN = {
    "workload": {"kind": "stream", "message_bytes": 16384, "depth": 8, "duration": "120 us"},
    "faults": [
        {"kind": "drain", "where": "p1-t1-1", "at": "20 us", "duration": "70 us"},
        {"kind": "switch-reboot", "where": "p1-t1-1", "at": "40 us", "duration": "30 us"},
        {"kind": "loss", "where": "h0:p0-t0-0", "ratio": 0.02, "at": "30 us", "duration": "50 us"},
    ],
}
ALL_REDUCE = {"kind": "all-reduce", "ranks": 16, "ranks_per_host": 2, "sizes": ["64 KiB"], "iterations": 1}
RUNS: dict[str, dict[str, Any]] = {
    "trimming": {"transports": ["mrc"]},
    "dcqcn": {"transports": ["rocev2"]},
    "pfc": {"transports": {"rocev2-pfc": SMALL_BUFFERS}},
    "credits": {"transports": {"rocev2-credits": SMALL_BUFFERS}},
    "mrc-pfc": {"transports": {"mrc-pfc": {"use": "mrc", "lossless": "pfc", **SMALL_BUFFERS}}},
    "drain": {"transports": ["mrc"], **DRAIN},
    "two-ranks": {"transports": ["mrc"], "workload": ALL_REDUCE},
}
"""The options of each run, by name."""


def carry_out(name: str, out: Path, seed: int = 1, *, capture: bool = True) -> Evidence:
    """Carry out one of the runs. Write its files into `out`."""
    asked = {
        "name": name,
        "topology": {"name": name, **TOPOLOGY},
        "target": "sim",
        "repetitions": 1,
        "seed": seed,
        "warmup": "20 us",
        "limit": "1 s",
        "workload": INCAST,
        "measure": {"series": "10 us", "capture": capture},
        **RUNS[name],
    }
    scenario = parse_scenario(json.dumps(asked), f"{name}.yaml")
    (transport,) = scenario.transports
    return VirtualRepetition(scenario, transport, scenario.fabric(), out, lambda: None).run(0)


def digest(out: Path, found: Evidence) -> str:
    """Return a hash over the bytes of a run's captures, event logs and faults, and over its counters."""
    content = hashlib.sha256()
    for path in sorted(out.rglob("*")):
        if path.suffix in (".pcap", ".jsonl", ".json"):
            content.update(path.relative_to(out).as_posix().encode() + b"\0" + path.read_bytes())
    counted = {
        "counters": dict(found.counters),
        "links": dict(found.links),
        "pauses": dict(found.flow_control),
    }
    content.update(json.dumps(counted, sort_keys=True).encode())
    return content.hexdigest()


def main(seed: str = "1", *names: str) -> None:
    """Print the hash of each run, or of the named runs."""
    for name in names or RUNS:
        with tempfile.TemporaryDirectory() as folder:
            print(name, digest(Path(folder), carry_out(name, Path(folder), int(seed))))


if __name__ == "__main__":
    main(*sys.argv[1:])
