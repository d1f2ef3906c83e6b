"""The goodput in a result, and the goodput computed from its captures without the endpoints' counters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mrclab.experiments.measure.pcap import read_pcap
from mrclab.experiments.measure.recording import load_recording


def goodputs_mbps(out: Path, result: Mapping[str, Any], receiver: str) -> tuple[float, float]:
    """Return the goodput of ``mrc``'s first repetition: from the result, and from a capture, in Mbit/s."""
    sample = result["transports"]["mrc"]["samples"][0]
    begin_ns, end_ns = sample["measure_ns"], sample["end_ns"]
    folder = out / "mrc-0"
    packets = read_pcap(folder / "captures" / f"{receiver}.pcap")
    rows = packets.rows[packets.is_data & ~packets.rows["trimmed"]]
    recording = folder / "recording.json"
    t_ns = rows["t_ns"]
    if recording.exists():  # a run in virtual time has no such file
        t_ns = load_recording(recording).clock.to_monotonic(t_ns)
    arrived = sorted(zip(t_ns.tolist(), rows["psn"].tolist(), rows["payload"].tolist(), strict=True))
    seen: set[int] = set()
    marks = []
    for at_ns, psn, payload in arrived:
        if psn not in seen and begin_ns <= at_ns < end_ns:
            marks.append((at_ns, payload))
        seen.add(psn)
    took_ns = marks[-1][0] - marks[0][0]
    return float(sample["metrics"]["goodput_mbps"][0]), sum(size for _, size in marks[1:]) * 8e3 / took_ns
