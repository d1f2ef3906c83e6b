"""The session's measurements, in the form that Prometheus reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

Frame = Mapping[str, Any]
TIMES = ("first_loss", "detected", "rerouted", "recovered")


class SessionCollector(Collector):
    """The newest frame as metrics; ``newest`` returns it. ``kept_bytes``: by kind of record."""

    def __init__(self, newest: Callable[[], Frame | None], kept_bytes: Mapping[str, int]) -> None:
        self._newest = newest
        self._kept_bytes = kept_bytes

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics."""
        frame = self._newest()
        if frame is None or "transports" not in frame:
            return
        rate = GaugeMetricFamily(
            "mrclab_delivered_bits_per_second", "Payload delivered.", labels=("transport", "source", "target")
        )
        sent = CounterMetricFamily("mrclab_packets_sent", "Packets sent.", labels=("transport",))
        resent = CounterMetricFamily("mrclab_packets_retransmitted", "Sent again.", labels=("transport",))
        paths = GaugeMetricFamily(
            "mrclab_active_paths", "EVs in use by the flow that is shown.", labels=("transport",)
        )
        for name, one in frame["transports"].items():
            for source, target, bps in one["flows"]:
                rate.add_metric((name, source, target), bps)
            sent.add_metric((name,), one["sent"])
            resent.add_metric((name,), one["resent"])
            paths.add_metric((name,), sum(row[3] for row in frame["paths"].get(name, ())))
        faults = GaugeMetricFamily("mrclab_active_faults", "Faults in the fabric now.")
        faults.add_metric((), len(frame["faults"]))
        times = GaugeMetricFamily(
            "mrclab_last_fault_seconds",
            "Times of the newest fault that a transport felt, since the fault.",
            labels=("transport", "time"),
        )
        last: dict[str, Mapping[str, Any]] = {}
        for card in frame["cards"]:
            last |= {name: result for name, result in card["results"].items() if result["felt"]}
        for name, result in last.items():
            for what in TIMES:
                value = result[f"{what}_us"]
                if value is not None:
                    times.add_metric((name, what), value / 1e6)
        kept = GaugeMetricFamily(
            "mrclab_live_kept_bytes", "What the page keeps of the past.", labels=("what",)
        )
        for what, count in self._kept_bytes.items():
            kept.add_metric((what,), count)
        yield kept
        yield from (rate, sent, resent, paths, faults, times)


def exposition(newest: Callable[[], Frame | None], kept_bytes: Mapping[str, int]) -> bytes:
    """Return all metrics as text in Prometheus's format."""
    registry = CollectorRegistry()
    registry.register(SessionCollector(newest, kept_bytes))
    return generate_latest(registry)
