"""Records of a simulated fabric: packets at NICs, queues of ports, stopped links.

Captures have the format of a live run's captures. Their times are virtual, in ns from 0. The link type
LINUX_SLL2 marks sent packets. The queues of all ports are recorded over time, for a heat map. The flow meter
reports when lossless links were stopped during the measurement. The flow meter also reports the longest queue
of each of these links, bytes.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from mrclab.experiments.measure.pcap import LINKTYPE_LINUX_SLL2, SLL2_OUTGOING, file_header
from mrclab.experiments.measure.recording import CaptureCounts, OffsetSample, Recording
from mrclab.simulator.clock import PS_PER_NS
from mrclab.simulator.flow_control import PfcInlet
from mrclab.simulator.network import Network
from mrclab.simulator.port import DATA, Port
from mrclab.simulator.served import ServedPort, Stops

SNAPLEN = 192
_ETHERNET = 14
_ETH_P_IPV6, _ARPHRD_ETHER = 0x86DD, 1
_RECORD = struct.Struct("<IIII")
_SLL2 = struct.Struct(">HHIHBB6sxx")
_FLUSH_BYTES = 1 << 22


class PcapRecorder:
    """Write the frames that a NIC sends and receives to a pcap file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.packets = 0
        self._file = path.open("wb")
        self._buffer = bytearray(file_header(SNAPLEN, LINKTYPE_LINUX_SLL2))

    def note(self, now_ns: int, port: int, frame: bytes, outgoing: bool) -> None:
        """Record a frame with its time, its port and its direction."""
        link = _SLL2.size - _ETHERNET
        kept = min(len(frame), SNAPLEN) + link
        self._buffer += _RECORD.pack(now_ns // 10**9, now_ns % 10**9, kept, len(frame) + link)
        kind = SLL2_OUTGOING if outgoing else 0
        self._buffer += _SLL2.pack(_ETH_P_IPV6, 0, port + 1, _ARPHRD_ETHER, kind, 6, frame[6:12])
        self._buffer += frame[_ETHERNET:SNAPLEN]
        self.packets += 1
        if len(self._buffer) >= _FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._file.write(self._buffer)
        self._buffer.clear()

    def close(self) -> None:
        """Write the frames that are still in memory, and close the file."""
        self._flush()
        self._file.close()


def recording_of(captures: dict[str, PcapRecorder]) -> Recording:
    """Return a recording like that of a live run. No packet was missed, and there is only one clock."""
    counts = {name: CaptureCounts(c.packets, c.packets, 0) for name, c in captures.items()}
    return Recording(counts, (OffsetSample(0, 0, 0),), ())


MOST_ROWS = 400
"""The most readings to keep. If there are more, every second reading is removed and the period doubles."""
MOST_PORTS = 64
"""The number of ports to report: the ports with the longest queues."""


class QueueMeter:
    """Measure periodically how long a frame would wait at each port."""

    def __init__(self, network: Network, begin_ns: int, period_ns: int, *, wanted: bool) -> None:
        """Begin the readings at ``begin_ns``. If ``wanted`` is False, take no readings."""
        self._ports = list(network.links.values()) if wanted else []
        self._period_ns = period_ns
        self._begin_ns = begin_ns
        self._rows: list[list[int]] = []
        self.next_ns: int | None = begin_ns if wanted else None
        """When the next reading is due, or None."""

    def act(self, now_ns: int) -> None:
        """Take a reading if it is due."""
        if self.next_ns is None or now_ns < self.next_ns:
            return
        now_ps = now_ns * PS_PER_NS
        self._rows.append([max(0, port.load_ps() - now_ps) // PS_PER_NS for port in self._ports])
        if len(self._rows) > MOST_ROWS:
            self._rows = self._rows[::2]
            self._period_ns *= 2
        self.next_ns = self._begin_ns + len(self._rows) * self._period_ns

    def found(self, measure_ns: int) -> dict[str, Any]:
        """Return the readings in JSON types: ``start_us``, ``bin_us`` and ``wait_ns``.

        ``start_us`` is the time from ``measure_ns`` to the first reading.

        ``wait_ns`` has a list for each port, by the port's name. Ports with empty queues are left out.
        """
        columns = zip(*self._rows, strict=True) if self._rows else ()
        waits = {port.name: list(column) for port, column in zip(self._ports, columns, strict=False)}
        longest = sorted(waits, key=lambda name: (-max(waits[name]), name))[:MOST_PORTS]
        return {
            "start_us": (self._begin_ns - measure_ns) / 1e3,
            "bin_us": self._period_ns / 1e3,
            "wait_ns": {name: waits[name] for name in sorted(longest) if max(waits[name])},
        }


_PS_PER_US = 1000 * PS_PER_NS


class FlowMeter:
    """Count the events at the ports of a network from the beginning to the end of a measurement."""

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
        """The value of `Evidence.flow_control`; empty if the fabric's links drop frames."""

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
        """Begin to count the events at all ports, at the start of the measurement."""
        clock = self._network.clock
        self._begin_ps = clock.now_ps
        self._stops = Stops(clock.now_ps, self._bin_ns * PS_PER_NS)
        for port in self._served:
            port.count_anew(self._stops)
        self._counts = self._now_counts()
        self._stopped_ps = [port.stopped_ps(DATA) for port in self._served]

    def end(self) -> None:
        """End the count and compute the result. A second call does nothing."""
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
