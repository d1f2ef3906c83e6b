"""Measurement of the idle network's RTT with EV probes [SPEC §7.4.7]. NSCC computes delay from this RTT."""

from __future__ import annotations

from mrclab.hosts.mrc import Endpoint
from mrclab.hosts.mrc.events import EvProbed
from mrclab.hosts.nic.device import Device
from mrclab.hosts.options import wire_time_ns
from mrclab.topologies import Fabric

PROBES = 32


def calibrate(device: Device, qpn: int, fabric: Fabric, host: str, peer: str) -> int:
    """Measure the base RTT over a queue pair, set it in the congestion control and return it, in ns.

    The base RTT is the smallest RTT of some EV probes, plus the time to send a full packet, because a probe
    is short. Both ends must be connected. The function waits for the answers, and drops other events in the
    meantime. Raise TimeoutError if no probe is answered, TypeError if the endpoint is not MRC.
    """
    endpoint = device.endpoint
    if not isinstance(endpoint, Endpoint):
        raise TypeError("only MRC has EV probes to measure a base RTT with")
    evs = [ev.ev for ev in endpoint.ev_counters(qpn)]
    rtts: list[int] = []
    for number in range(PROBES):
        request = endpoint.probe_ev(qpn, evs[number % len(evs)], device.now())
        answered = False
        while not answered:
            device.turn(device.now() + endpoint.config.endpoint_timeout_ns)
            for event in device.events():
                if isinstance(event, EvProbed) and event.request_id == request:
                    answered = True
                    rtts += [event.rtt_ns] if event.rtt_ns is not None else []
    if not rtts:
        raise TimeoutError(f"{peer} answered none of {PROBES} EV probes from {host}")
    base_rtt_ns = min(rtts) + wire_time_ns(fabric, host, peer, endpoint.config.mtu_bytes)
    endpoint.set_base_rtt(qpn, base_rtt_ns)
    return base_rtt_ns
