"""The scenarios in which emulation and simulator must agree, and the quantities read from a run.

At 25 Mbit/s a packet takes 1.4 ms on a link, much more than the hosts' CPU time for it. At 1 Gbit/s it takes
34 us, so that the CPU time is not small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from mrclab.experiments.measure.events import load_events
from mrclab.experiments.measure.pcap import Opcode, Packets, read_pcap
from mrclab.experiments.measure.recording import ClockMap, OffsetSample, load_recording
from mrclab.experiments.measure.repetition import Repetition

Target = Literal["ebpf", "sim"]
TRANSPORT: Final = "mrc"
PAYLOAD_BYTES: Final = 4096
SETTLE_NS: Final = 1_000_000_000
"""The time at the start of steady flows that is not measured, because windows still change, in ns."""
STEADY_S: Final = 4
CE: Final = 3
SLOW_BPS, FAST_BPS = 25_000_000, 1_000_000_000
PACE_BPS: Final = {SLOW_BPS: 24_000_000, FAST_BPS: 200_000_000}
"""Payload rates under cuts: half of what two slow ports carry, and a rate that loads no CPU fully."""


@dataclass(frozen=True, slots=True)
class Case:
    """A scenario for both targets. `rate_bps` is the rate of its slowest links."""

    name: str
    rate_bps: int
    scenario: Mapping[str, Any]

    def on(self, target: Target, processing_ns: int, links: str, repetitions: int) -> dict[str, Any]:
        """Return the scenario for a target. In virtual time, hosts answer packets after `processing_ns`."""
        virtual = {"virtual": {"processing": f"{processing_ns} ns", "links": links}}
        return {
            "name": self.name,
            "target": target,
            "repetitions": repetitions,
            "measure": {"capture": True, "series": "10 ms"},
            **self.scenario,
            **(virtual if target == "sim" else {}),
        }


def _rate(bps: int) -> str:
    return f"{bps // 1000} kbit/s"


def _fabric(planes: int, t0: int, t1: int, hosts: int, near_bps: int, far_bps: int) -> dict[str, Any]:
    links = {"host": {"rate": _rate(near_bps)}, "fabric": {"rate": _rate(far_bps)}}
    return {"name": "crossing", "planes": planes, "t0": t0, "t1": t1, "hosts": hosts, "links": links}


def _transport(rate_bps: int, **options: Any) -> dict[str, Any]:
    use = "mrc-slow-links" if rate_bps == SLOW_BPS else "mrc"
    return {TRANSPORT: {"use": use, "options": options}}


def _spray(rate_bps: int, pace_bps: int, **more: Any) -> dict[str, Any]:
    return {
        "topology": _fabric(2, 2, 4, 2, rate_bps, rate_bps),
        "transports": _transport(rate_bps),
        "workload": {
            "kind": "spray",
            "message_bytes": PAYLOAD_BYTES,
            "payload_bytes": PAYLOAD_BYTES,
            "rate": _rate(pace_bps),
            "busy": 0,
            **more,
        },
    }


def cut(rate_bps: int, trials: int) -> Case:
    """Return the case of a steady stream over eight paths, of which one after another is silently cut."""
    fault = {"kind": "blackhole", "where": "random", "trials": trials, "hold": "100 ms", "settle": "100 ms"}
    return Case("cut", rate_bps, {**_spray(rate_bps, PACE_BPS[rate_bps]), "faults": [fault]})


def dead_links(dead: int) -> Case:
    """Return the case of a stream at full speed over four uplinks, of which ``dead`` are dead."""
    faults = [{"kind": "blackhole", "where": f"p0-t0-0:p0-t1-{n}", "at": 0} for n in range(dead)]
    return Case(
        f"dead-{dead}",
        SLOW_BPS,
        {
            "topology": _fabric(1, 2, 4, 2, 4 * SLOW_BPS, SLOW_BPS),
            "transports": _transport(SLOW_BPS),
            "workload": {"kind": "stream", "message_bytes": 16384, "depth": 32, "duration": f"{STEADY_S} s"},
            "faults": faults,
        },
    )


def shared_link() -> Case:
    """Return the case of two flows that fill one link between two switches, with NSCC."""
    return Case(
        "shared",
        SLOW_BPS,
        {
            "topology": _fabric(1, 2, 1, 4, SLOW_BPS, SLOW_BPS),
            "transports": _transport(SLOW_BPS),
            "workload": {
                "kind": "join",
                "src": "h0",
                "dst": "h2",
                "second_src": "h1",
                "second_dst": "h3",
                "second_at": 0,
                "message_bytes": 16384,
                "depth": 16,
                "duration": f"{STEADY_S} s",
            },
        },
    )


def incast() -> Case:
    """Return the case of three hosts that send to one host, with large windows that never stop a sender."""
    return Case(
        "incast",
        SLOW_BPS,
        {
            "topology": _fabric(1, 1, 0, 4, SLOW_BPS, SLOW_BPS),
            "transports": _transport(SLOW_BPS, congestion="fixed", cwnd_bytes=64 * PAYLOAD_BYTES),
            "workload": {
                "kind": "incast",
                "message_bytes": 16384,
                "depth": 16,
                "duration": f"{STEADY_S} s",
            },
        },
    )


# The quantities read from a repetition


@dataclass(frozen=True)
class Steady:
    """The properties of steady flows after `SETTLE_NS`, over all receivers."""

    goodput_mbps: float
    marked: float
    """The share of marked packets among the untrimmed data packets that arrived."""
    trims_per_s: float
    window_bytes: float | None
    """The mean congestion window over time and queue pairs, or None if no queue pair reported it."""


def packets_of(directory: Path, host: str) -> tuple[Packets, npt.NDArray[np.int64]]:
    """Return the packets of a host's capture, and when they were captured (CLOCK_MONOTONIC, ns)."""
    packets = read_pcap(directory / "captures" / f"{host}.pcap")
    found = directory / "recording.json"
    clock = load_recording(found).clock if found.exists() else ClockMap((OffsetSample(0, 0, 0),))
    return packets, clock.to_monotonic(packets.rows["t_ns"])


def answers_us(packets: Packets, t_ns: npt.NDArray[np.int64]) -> list[float]:
    """Return the times from each data packet that a host received to the SACK that answers it, in us."""
    order = np.argsort(t_ns, kind="stable")
    rows, found = packets.rows[order], list[float]()
    came: dict[tuple[int, int], int] = {}
    sack = rows["outgoing"] & (rows["opcode"] == Opcode.SACK)
    data = ~rows["outgoing"] & packets.is_data[order]
    psn = np.where(sack, rows["echo_psn"], rows["psn"])
    ev = np.where(sack, rows["echo_ev"], rows["ev"])
    wanted = sack | data
    columns = (c[wanted].tolist() for c in (sack, psn, ev, t_ns[order]))
    for is_sack, *key, at_ns in zip(*columns, strict=True):
        if not is_sack:
            came[key[0], key[1]] = at_ns
            continue
        began_ns = came.pop((key[0], key[1]), None)
        if began_ns is not None:
            found.append((at_ns - began_ns) / 1e3)
    return found


def steady(directory: Path, repetition: Repetition) -> Steady:
    """Return the properties of a repetition's flows."""
    begin_ns = repetition.measure_ns + SETTLE_NS
    end_ns = repetition.measure_ns + STEADY_S * 10**9
    seconds = (end_ns - begin_ns) / 1e9
    whole = marked = trimmed = 0
    for path in sorted((directory / "captures").glob("*.pcap")):
        packets, t_ns = packets_of(directory, path.stem)
        rows = packets.rows
        came = packets.is_data & ~rows["outgoing"] & (t_ns >= begin_ns) & (t_ns < end_ns)
        trimmed += int((came & rows["trimmed"]).sum())
        whole += int((came & ~rows["trimmed"]).sum())
        marked += int((came & ~rows["trimmed"] & (rows["ecn"] == CE)).sum())
    windows = [
        mean
        for path in sorted((directory / "events").glob("*.jsonl"))
        for mean in _windows(path, begin_ns, end_ns)
    ]
    series = repetition.series
    starts_us = series["start_us"] + series["bin_us"] * np.arange(len(series["bytes"]))
    inside = (starts_us >= SETTLE_NS / 1e3) & (starts_us + series["bin_us"] <= STEADY_S * 1e6)
    covered_s = inside.sum() * series["bin_us"] / 1e6
    return Steady(
        float(np.array(series["bytes"])[inside].sum() * 8 / covered_s / 1e6),
        marked / whole if whole else 0.0,
        trimmed / seconds,
        sum(windows) / len(windows) if windows else None,
    )


def _windows(path: Path, begin_ns: int, end_ns: int) -> list[float]:
    """Return the mean window over time of each queue pair that reported changes of it."""
    steps: dict[int, list[tuple[int, int]]] = {}
    for event in load_events(path).of("WindowChanged"):
        steps.setdefault(int(event.fields["qpn"]), []).append((event.t_ns, int(event.fields["cwnd_bytes"])))
    return [mean for found in steps.values() if (mean := mean_over_time(found, begin_ns, end_ns)) is not None]


def mean_over_time(steps: Sequence[tuple[int, int]], begin_ns: int, end_ns: int) -> float | None:
    """Return the mean from `begin_ns` to `end_ns` of a value that changes at given times.

    ``steps`` has (time, new value) in the order of time. Return None if no change was in that time.
    """
    if not any(begin_ns <= t_ns < end_ns for t_ns, _ in steps):
        return None
    total = known_ns = 0
    for number, (t_ns, value) in enumerate(steps):
        until = steps[number + 1][0] if number + 1 < len(steps) else end_ns
        lasted = max(0, min(until, end_ns) - max(t_ns, begin_ns))
        total += lasted * value
        known_ns += lasted
    return total / known_ns if known_ns else None
