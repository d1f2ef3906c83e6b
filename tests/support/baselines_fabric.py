"""A process in which every baseline sends a megabyte over one ECMP fabric. Arguments: PREFIX STATE_DIR OUT.

It is a separate process because a process can work on one fabric only. It prints a JSON object of counters.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mrclab.testbed import kernel_ip
from mrclab.testbed.kernel_ip import announce_ports
from mrclab.testbed.lab import Lab
from mrclab.testbed.names import Names
from mrclab.topologies import load_fabric
from tests.support.live_ranks import run_ranks

PLAIN = {"encapsulation": "plain"}
BEFORE: dict[str, dict[str, Any]] = {
    "rocev2": {"kind": "rocev2", "options": PLAIN},
    "rocev2-16qp": {"kind": "rocev2", "options": {**PLAIN, "qps": 16}},
}
WITH_KERNEL: dict[str, dict[str, Any]] = {
    "tcp": {"kind": "tcp", "options": {}},
    "tcp-3": {"kind": "tcp", "options": {"streams": 3}},
    "mptcp": {"kind": "mptcp", "options": {}},
}


def main(prefix: str, state_dir: str, out: str) -> None:
    fabric = load_fabric("tiny")
    hosts = [host.name for host in fabric.hosts]
    found: dict[str, dict[str, int]] = {}
    with Lab.up(fabric, "ebpf", Path(out), names=Names(prefix, Path(state_dir))) as lab:
        lab.controller.install_ecmp()
        for name, transport in BEFORE.items():
            found[name] = run_ranks(lab.network, hosts, transport, Path(out))
        kernel_ip.address_hosts(fabric, lab.network.places)
        announce_ports(fabric, lab.network.places)
        for name, transport in WITH_KERNEL.items():
            found[name] = run_ranks(lab.network, hosts, transport, Path(out))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
