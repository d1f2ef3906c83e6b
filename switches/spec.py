"""A switch to start, and a switch that runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WAIT_KEY = "mrclab-wait-ns"
"""Metadata of a call that changes what a switch of our own target forwards: how long to wait before the
change, once all is ready for it (`linux.scheduling.at_its_moment`). Other targets ignore it."""


@dataclass(frozen=True, slots=True)
class Queue:
    """The queue behind a port: how fast it is emptied, in packets/s, and how many packets it holds."""

    rate_pps: int
    depth_packets: int


@dataclass(frozen=True)
class SwitchSpec:
    """A switch to run: its name, its P4Runtime device id, and interface names by port number (0..510).

    Frames that it sends to its CPU port, if it has one, become packet-ins; packet-outs come in by it.
    """

    name: str
    device_id: int
    ports: Mapping[int, str]
    cpu_port: int | None = None


@dataclass(frozen=True)
class RunningSwitch:
    """A running switch. `grpc_address` (host:port, loopback) is that of the namespace it runs in."""

    name: str
    device_id: int
    grpc_address: str
