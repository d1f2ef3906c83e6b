"""Two descriptions of a switch: one to start it, and one while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WAIT_KEY = "mrclab-wait-ns"
"""gRPC metadata key of a P4Runtime Write or of a power-off call: the wait before the change, in ns. An
eBPF switch prepares the change, then waits (`linux.scheduling.at_its_moment`). BMv2 ignores the key."""


@dataclass(frozen=True, slots=True)
class Queue:
    """The output queue of a port: its rate in packets/s, and the number of packets that it can hold."""

    rate_pps: int
    depth_packets: int


@dataclass(frozen=True)
class SwitchSpec:
    """A switch to run: its name, its P4Runtime device id, and interface names by port number (0..510).

    A frame that the switch sends to its CPU port becomes a packet-in. A packet-out enters on the CPU port.
    """

    name: str
    device_id: int
    ports: Mapping[int, str]
    cpu_port: int | None = None


@dataclass(frozen=True)
class RunningSwitch:
    """A running switch. `grpc_address` (host:port) is a loopback address in the switch's namespace."""

    name: str
    device_id: int
    grpc_address: str
