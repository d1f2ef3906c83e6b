"""The RTT of the idle network, which NSCC counts delay from, measured by EV probes [SPEC §7.4.7]."""

from __future__ import annotations

from hosts.mrc import Endpoint
from hosts.mrc.events import EvProbed
from hosts.nic.device import Device
from hosts.options import wire_time_ns
from topologies import Fabric

PROBES = 32


def calibrate(device: Device, qpn: int, fabric: Fabric, host: str, peer: str) -> int:
    """Measures the base RTT over a queue pair, tells it to the congestion control and returns it, in ns.

    It is the least of some EV probes' RTTs, and the links' time for a full packet, which a probe is not.
    Waits for those round trips; both ends must be connected, and what else happens meanwhile is not told.
    Raises TimeoutError where no probe is answered, TypeError where the endpoint speaks no MRC.
    """
    endpoint = device.endpoint
    if not isinstance(endpoint, Endpoint):
        raise TypeError("only MRC has EV probes to measure a base RTT with")
    evs = [ev.ev for ev in endpoint.ev_counters(qpn)]
    rtts: list[int] = []
    for number in range(PROBES):
        asked = endpoint.probe_ev(qpn, evs[number % len(evs)], device.now())
        answered = False
        while not answered:
            device.turn(device.now() + endpoint.config.endpoint_timeout_ns)
            for event in device.events():
                if isinstance(event, EvProbed) and event.request_id == asked:
                    answered = True
                    rtts += [event.rtt_ns] if event.rtt_ns is not None else []
    if not rtts:
        raise TimeoutError(f"{peer} answered none of {PROBES} EV probes from {host}")
    base_rtt_ns = min(rtts) + wire_time_ns(fabric, host, peer, endpoint.config.mtu_bytes)
    endpoint.set_base_rtt(qpn, base_rtt_ns)
    return base_rtt_ns
