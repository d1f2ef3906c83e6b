"""``mrclab exec --all``: one program on every host of the running fabric, as torchrun and mpirun start ranks.

Each process has its rank, the number of ranks and the first host's address in its environment, under the
names of PyTorch (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT) and Open MPI.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from mrclab.exec_record import join, part
from mrclab.hosts.service import addresses
from mrclab.linux.children import first_to_end
from mrclab.linux.errors import InputError
from mrclab.native.build import libraries
from mrclab.testbed.names import require_root
from mrclab.testbed.network import FabricNetwork
from mrclab.testbed.programs import management
from mrclab.topologies import Fabric

MASTER_PORT = "29500"
GRACE_S = 10.0
WAIT_S = 3600.0


def rank_environment(fabric: Fabric, rank: int) -> dict[str, str]:
    """Return the variables of a rank; rank n runs on the fabric's host number n."""
    size = str(len(fabric.hosts))
    return {
        "RANK": str(rank),
        "WORLD_SIZE": size,
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": str(addresses.ipv4(fabric, fabric.hosts[0].name)),
        "MASTER_PORT": MASTER_PORT,
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": size,
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    }


def run_everywhere(words: Sequence[str], user: str | None, file: Path | None = None) -> int:
    """Run a program on every host and return 0 once all have succeeded.

    If one fails, end the others and return its exit code, 128 and the signal's number for a signal. ``file``
    gets what all of them requested of their NICs.
    """
    if not words:
        raise InputError("exec needs a program: mrclab exec --all -- PROGRAM")
    require_root("exec ...")
    network = FabricNetwork.attached()
    fabric = network.fabric
    libraries()
    management.provide(network.names, fabric)
    options = [] if user is None else ["--user", user]
    parts = {} if file is None else {host.name: part(file, host.name) for host in fabric.hosts}
    running: dict[int, subprocess.Popen[bytes]] = {}
    try:
        for rank, host in enumerate(fabric.hosts):
            more = [*options, "--record", str(parts[host.name])] if parts else options
            child = subprocess.Popen(
                [sys.executable, "-m", "mrclab", "exec", *more, host.name, "--", *words],
                env=os.environ | rank_environment(fabric, rank),
                stdin=None if rank == 0 else subprocess.DEVNULL,
            )
            running[child.pid] = child
        while running:
            pid = first_to_end(list(running), WAIT_S)
            if pid is not None and (code := running.pop(pid).wait()):
                return 128 - code if code < 0 else code
        return 0
    finally:
        _end(list(running.values()))
        if file is not None:
            join(file, [path for path in parts.values() if path.exists()])


def _end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """End children: SIGTERM, and SIGKILL to the ones still running after a grace time."""
    for child in children:
        child.terminate()
    for child in children:
        try:
            child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
