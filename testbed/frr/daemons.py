"""Start and stop FRRouting's daemons. Each router has its own daemons, in its namespace and directory."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mrclab.linux.errors import MachineError, SwitchError
from mrclab.linux.processes import ending
from mrclab.testbed.doctor import FRR
from mrclab.testbed.frr.config import bfdd_conf, bgpd_conf, zebra_conf
from mrclab.testbed.network import FabricNetwork
from mrclab.topologies.routed import Router, Timers

USER = "frr"
MEND = "install the package frr (apt install frr)"
START_S, STOP_S = 10.0, 5.0
_LOOK_AGAIN_S = 0.01  # polling, because no event reports a new socket or BFD session
_ZSERV = "zserv.api"
_NAMES = ("zebra", "bgpd", "bfdd")


def find_daemons(directory: Path = FRR) -> Path:
    """Return the directory of FRRouting's daemons. Raise MachineError if they are not installed."""
    for name in _NAMES:
        if not os.access(directory / name, os.X_OK):
            raise MachineError("FRRouting is not installed", MEND)
    return directory


class DaemonError(SwitchError):
    """A daemon ended or did not start. The text has the daemon's name and the last line of its log."""


class Daemons:
    """The daemons of all routers."""

    def __init__(self, network: FabricNetwork, timers: Timers, directory: Path) -> None:
        self._network = network
        self._timers = timers
        self._directory = directory
        self._binaries = find_daemons()
        self._running: dict[str, dict[str, subprocess.Popen[Any]]] = {}

    def start(self, routers: Sequence[Router]) -> None:
        """Start every router's daemons. The kernel gets the routes only later: see `FrrFabric.converged`.

        The daemons' user is ``frr``. Raise DaemonError, or OSError if the directory cannot be written.
        """
        for router in routers:
            self._run("zebra", router, zebra_conf(router))
        deadline = time.monotonic() + START_S
        for router in routers:
            # Wait for zebra: a daemon that cannot connect to zebra tries again only after ten seconds.
            self._reachable(router.name, deadline)
        for router in routers:
            if self._timers.bfd_interval_ms:
                self._run("bfdd", router, bfdd_conf(router, self._timers))
            self._run("bgpd", router, bgpd_conf(router, self._timers))

    def _run(self, name: str, router: Router, configuration: str) -> None:
        home = self._directory / router.name
        home.mkdir(parents=True, exist_ok=True)
        shutil.chown(home, USER, USER)
        config = home / f"{name}.conf"
        config.write_text(configuration, encoding="utf-8")
        # A real router's control plane has its own CPU. Here the daemons only get a higher priority.
        argv = [
            "nice",
            "-n",
            "-20",
            str(self._binaries / name),
            "-f",
            str(config),
            "-i",
            str(home / f"{name}.pid"),
        ]
        argv += ["-z", str(home / _ZSERV), "--vty_socket", str(home), "-A", "127.0.0.1", "-P", "0"]
        argv += ["--log", f"file:{home / name}.log", "--log-level", "warning"]
        if name == "bfdd":
            argv += ["--bfdctl", str(home / "bfdd.sock")]
        with open(home / f"{name}.out", "wb") as out:
            self._running.setdefault(router.name, {})[name] = self._network.spawn_in(
                self._network.places[router.name],
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def _reachable(self, router: str, deadline: float) -> None:
        with socket.socket(socket.AF_UNIX) as probe:
            while probe.connect_ex(os.fsencode(self._directory / router / _ZSERV)):
                self.check()
                if time.monotonic() > deadline:
                    raise DaemonError(
                        f"zebra of {router} does not answer: {self._last_words(router, 'zebra')}"
                    )
                time.sleep(_LOOK_AGAIN_S)

    def watched(self, router: Router) -> bool:
        """Return True if BFD runs with every neighbour of a router, and all neighbours are up."""
        home = str(self._directory / router.name)
        command = ["vtysh", "--vty_socket", home, "-d", "bfdd", "-c", "show bfd peers json"]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        with contextlib.suppress(ValueError):
            peers: list[dict[str, object]] = json.loads(said)
            return sum(peer.get("status") == "up" for peer in peers) == len(router.neighbours)
        return False

    def kill(self, router: str) -> None:
        """Kill a router's daemons, as in a crash. The kernel keeps their routes."""
        for child in self._running.pop(router, {}).values():
            child.kill()
            child.wait()

    def stop(self) -> None:
        """End all daemons and remove their files. A second call has no effect."""
        children = [child for daemons in self._running.values() for child in daemons.values()]
        self._running.clear()
        for child in children:
            child.terminate()
        for child in children:
            try:
                child.wait(STOP_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def check(self) -> None:
        """Raise DaemonError if a daemon has ended although no fault killed it."""
        for router, daemons in self._running.items():
            for name, child in daemons.items():
                if child.poll() is not None:
                    words = self._last_words(router, name)
                    raise DaemonError(f"{name} of {router} {ending(child.returncode)} ({words})")

    def _last_words(self, router: str, name: str) -> str:
        for suffix in ("log", "out"):
            with contextlib.suppress(OSError):
                lines = (
                    (self._directory / router / f"{name}.{suffix}").read_text(errors="replace").split("\n")
                )
                if said := [line for line in lines if line.strip()]:
                    return said[-1].strip()
        return "it said nothing"
