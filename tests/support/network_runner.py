"""A process that brings a testbed up for a test: PREFIX STATE_DIR [HOW].

Without HOW, the process stays and owns the testbed. With ``detach``, the process ends and the testbed stays.
With ``daemon``, the process stays as the testbed's daemon. With ``hurry``, the process
prints a line, brings a testbed up and takes it down at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from mrclab.testbed.names import Names
from mrclab.testbed.network import FabricNetwork
from mrclab.topologies import load_fabric


def main(prefix: str, state_dir: str, *how: str) -> None:
    names = Names(prefix, Path(state_dir))
    if "hurry" in how:
        print("up", flush=True)
        FabricNetwork.up(load_fabric("lab"), names=names).down()
        return
    network = FabricNetwork.up(load_fabric("tiny"), names=names)
    if "daemon" in how:
        network.record_process(os.getpid(), "daemon")
        network.detach()
    server = network.spawn_in_fabric(["sleep", "1000"])
    shell = network.spawn("h3", ["sh", "-c", "sleep 1000 & echo; wait"], stdout=subprocess.PIPE)
    shell.stdout.readline()  # now both processes of the shell run
    network.record_process(server.pid, "switches")
    if "detach" in how:
        network.detach()
        print("up", flush=True)
        return
    with network:
        print("up", flush=True)
        while True:
            signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
