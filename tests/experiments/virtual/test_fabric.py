"""A simulated fabric for a transport: its buffers, windows, timers and random numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from mrclab.experiments.virtual.fabric import VirtualFabric
from mrclab.hosts.options import idle_rtt_ns
from mrclab.hosts.transports.table import TRANSPORTS
from mrclab.simulator.flow_control import PfcInlet
from mrclab.simulator.served import ServedPort
from mrclab.topologies import Fabric, build_fabric

LINKS = {
    "host": {"rate": "400 Gbit/s", "delay": "500 ns"},
    "fabric": {"rate": "400 Gbit/s", "delay": "725 ns"},
}
FABRIC = build_fabric(
    json.dumps({"name": "fast", "planes": 1, "t0": 2, "t1": 2, "hosts": 8, "links": LINKS}), "fast"
)
RATE_BPS = 400 * 10**9


def endpoints(fabric: Fabric, transport: str, **kwargs: Any) -> Iterator[Any]:
    built = VirtualFabric(fabric, TRANSPORTS[transport], kwargs.pop("seed", 1), **kwargs)
    for host in fabric.hosts:
        yield built.nic(host.name, {}).endpoint


def test_a_buffer_holds_what_the_link_carries_in_an_idle_round_trip() -> None:
    """The round trip includes the propagation on the port's own link, which must be counted only once."""
    built = VirtualFabric(FABRIC, TRANSPORTS["rocev2-pfc"], 1)
    port = built.network.links["h0", "p0-t0-0"]
    assert isinstance(port, ServedPort)
    assert isinstance(port.inlet, PfcInlet)
    wanted = RATE_BPS * idle_rtt_ns(FABRIC, "h0") / (8 * 10**9)
    assert port.inlet.xoff_bytes == pytest.approx(wanted, rel=0.001)


def test_no_two_endpoints_of_a_run_share_random_numbers() -> None:
    """Repetitions must be independent, although their seeds are consecutive."""
    firsts = [
        [endpoint.create_qp() for _ in range(4)]
        for seed in range(3)
        for endpoint in endpoints(FABRIC, "mrc", seed=seed)
    ]
    numbers = [number for first in firsts for number in first]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("transport", ["mrc", "rocev2"])
def test_longer_wires_have_windows_and_timers_of_their_length(transport: str) -> None:
    propagation_ns = 100_000
    rtt_ns = idle_rtt_ns(FABRIC, "h0") + 2 * propagation_ns
    endpoint = next(endpoints(FABRIC, transport, propagation_ns=propagation_ns))
    if transport == "rocev2":
        assert endpoint.config.window_bytes == 2 * RATE_BPS * rtt_ns // (8 * 10**9)
    else:
        assert endpoint.config.nscc.base_rtt_ns == rtt_ns
        assert endpoint.config.endpoint_timeout_ns > rtt_ns
        assert endpoint.config.mpr * endpoint.config.mtu_bytes > RATE_BPS * rtt_ns // (8 * 10**9)
