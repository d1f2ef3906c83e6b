"""All pairs of hosts of a running exercise, pinged once each."""

from __future__ import annotations

import ipaddress
import subprocess
from itertools import permutations

from mrclab.exercises.network import Exercise

COUNT, WAIT_S = 3, 2
_LIMIT_S = 60.0


def ping_all(up: Exercise) -> dict[tuple[str, str], bool]:
    """Return for each ordered pair of hosts whether a ping was answered; all pairs at the same time.

    Three requests are sent to each host, for the first one may wait for ARP or for a controller.
    """
    addresses = {host.name: ipaddress.ip_interface(host.ip).ip for host in up.plan.topology.hosts}
    running = {
        (src, dst): up.start(
            src,
            f"exec ping -n -q -c {COUNT} -i 0.5 -W {WAIT_S} {addresses[dst]}",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for src, dst in permutations(addresses, 2)
    }
    try:
        return {pair: child.wait(_LIMIT_S) == 0 for pair, child in running.items()}
    finally:
        for child in running.values():
            child.kill()
            child.wait()
