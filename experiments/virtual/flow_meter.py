"""Lossless links during the measurement of a repetition: which stopped, for how long, and their queues."""

from __future__ import annotations

from typing import Any

from mrclab.simulator.clock import PS_PER_NS
from mrclab.simulator.network import Network
from mrclab.simulator.pfc import PfcInlet
from mrclab.simulator.port import DATA, Port
from mrclab.simulator.served import ServedPort, Stops

_PS_PER_US = 1000 * PS_PER_NS


class FlowMeter:
    """Reads the ports of a network at the beginning and at the end of a measurement."""

    def __init__(self, network: Network, bin_ns: int) -> None:
        self._network = network
        self._bin_ns = bin_ns
        self._served = [port for port in network.links.values() if isinstance(port, ServedPort)]
        self._counts: dict[str, int] = {}
        self._stopped_ps: list[int] = []
        self._stops = Stops(0, bin_ns * PS_PER_NS)
        self._begin_ps = 0
        self._over = False
        self.found: dict[str, Any] = {}
        """For `Evidence.flow_control`; empty if links drop."""

    def _now_counts(self) -> dict[str, int]:
        ports = list[Port](self._network.links.values())
        found = {
            "frames_marked": sum(port.marked for port in ports),
            "frames_trimmed": sum(port.trimmed for port in ports),
            "frames_dropped": sum(port.dropped for port in ports),
        }
        if not self._served:
            return found
        inlets = [port.inlet for port in self._served]
        found["frames_dropped"] += sum(inlet.overflowed for inlet in inlets if inlet is not None)
        pausing = [inlet for inlet in inlets if isinstance(inlet, PfcInlet)]
        if pausing:
            found["pause_frames"] = sum(inlet.pauses for inlet in pausing)
            found["resume_frames"] = sum(inlet.resumes for inlet in pausing)
        else:
            found["credit_updates"] = sum(port.signals_sent for port in self._served)
        found["blocked_packets"] = sum(port.blocked for port in self._served)
        return found

    def begin(self) -> None:
        """Begin to measure."""
        clock = self._network.clock
        self._begin_ps = clock.now_ps
        self._stops = Stops(clock.now_ps, self._bin_ns * PS_PER_NS)
        for port in self._served:
            port.count_anew(self._stops)
        self._counts = self._now_counts()
        self._stopped_ps = [port.stopped_ps(DATA) for port in self._served]

    def end(self) -> None:
        """End the measurement, unless that was done."""
        if self._over:
            return
        self._over = True
        now_ps = self._network.clock.now_ps
        self._counts = {name: count - self._counts.get(name, 0) for name, count in self._now_counts().items()}
        lossless = self._network.lossless
        if lossless is None:
            return
        ports: list[dict[str, Any]] = []
        for port, before_ps in zip(self._served, self._stopped_ps, strict=True):
            if not port.stops and not port.most_waiting_bytes:
                continue
            ports.append(
                {
                    "port": port.name,
                    "stops": port.stops,
                    "stopped_us": (port.stopped_ps(DATA) - before_ps) / _PS_PER_US,
                    "depth": port.deepest,
                    "blocked_packets": port.blocked,
                    "blocked_us": port.blocked_ps / _PS_PER_US,
                    "queue_bytes": port.most_waiting_bytes,
                }
            )
            if port.stopped[DATA]:
                self._stops.add(port.stopped_since_ps(DATA), now_ps)
        ports.sort(key=lambda row: (-row["stopped_us"], row["port"]))
        self.found = {
            "mode": lossless.mode,
            "links": len(self._served),
            "length_us": (now_ps - self._begin_ps) / _PS_PER_US,
            "bin_us": self._bin_ns / 1000,
            "stopped_us": [value / _PS_PER_US for value in self._stops.bins_ps],
            "ports": ports,
        }

    def counters(self) -> dict[str, int]:
        """Return the sums of all ports' counters."""
        return self._counts
