"""A process that brings a testbed up and stays, to be killed by a test: PREFIX STATE_DIR [detach]."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from testbed.names import Names
from testbed.network import FabricNetwork
from topologies import load_fabric


def main(prefix: str, state_dir: str, *how: str) -> None:
    names = Names(prefix, Path(state_dir))
    network = FabricNetwork.up(load_fabric("tiny"), names=names)
    server = network.spawn_in_fabric(["sleep", "1000"])
    network.spawn("h3", ["sh", "-c", "sleep 1000 & wait"])
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
