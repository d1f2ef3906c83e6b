"""The daemon that ``mrclab up`` starts. It owns the lab and answers requests on a socket.

The command is ``python -m mrclab.daemon TOPOLOGY TARGET LOG_DIR STATUS_FD [PROGRAM]``. The daemon writes its
progress to the status descriptor, one JSON object per line. An object ``say`` has a line for the user. The
last object is ``ready``, or an error as in `mrclab.linux.requests`. On SIGTERM the daemon takes the lab down.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import finsy as fy
import grpc

from mrclab.controller.programs import pipeline_of
from mrclab.faults.kinds import Fault
from mrclab.linux import namespaces
from mrclab.linux.errors import BadInputError, InputError, MachineError, SwitchError
from mrclab.linux.life import signals
from mrclab.linux.link_monitor import link_states
from mrclab.linux.requests import Request, TooLongError, carry_out, encode, refusal
from mrclab.logs import set_up_logging
from mrclab.testbed import state
from mrclab.testbed.lab import Lab
from mrclab.testbed.names import Names
from mrclab.topologies import load_fabric

LOGGER = logging.getLogger(__name__)
REQUEST_BYTES = 1 << 16
REQUEST_S = 5.0
"""The time limit, s, for the arrival of a whole request. A slower client gets no answer."""


def _unavailable(error: grpc.RpcError | fy.P4ClientError) -> bool:
    """Return True if the error means that a switch does not answer, for example because it is off."""
    if isinstance(error, fy.P4ClientError):
        return error.code is fy.GRPCStatusCode.UNAVAILABLE
    return isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNAVAILABLE


class Daemon:
    """The functions that carry out requests to a running lab."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.operations: Mapping[str, Callable[[Request], dict[str, Any]]] = {
            "status": self._with_switches(self._status),
            "fault": self._with_switches(self._fault),
            "faults": self._faults,
            "restore": self._with_switches(self._restore),
            "ecmp": self._with_switches(self._ecmp),
            "counters": self._with_switches(self._counters),
            "down": self._down,
        }
        self.stopping = False

    def _with_switches(self, operation: Callable[[Request], dict[str, Any]]) -> Callable[[Request], Any]:
        """Return a function that checks the switches and then executes the operation.

        Raise SwitchError if a process of the switches has ended, InputError if a switch does not answer.
        """

        def checked(request: Request) -> dict[str, Any]:
            if why := self._lab.target.ended():
                raise SwitchError(f"{why}; 'mrclab down' removes the testbed")
            try:
                return operation(request)
            except (grpc.RpcError, fy.P4ClientError) as error:
                if _unavailable(error):
                    raise InputError(
                        "the switch does not answer: restore it, or wait until it runs"
                    ) from None
                raise

        return checked

    def _status(self, request: Request) -> dict[str, Any]:
        lab = self._lab
        counters = lab.controller.counters()
        # Comparing all table entries is slower than reading counters, so `status --watch` does not compare.
        drifts = {d.switch: str(d) for d in (lab.controller.verify() if request.get("verify", True) else ())}
        return {
            "t_ns": time.monotonic_ns(),
            "topology": lab.fabric.name,
            "target": lab.target.name,
            "faults": {
                where: asdict(fault) | {"times_down": len(lab.faults.transitions(where)) or 1}
                for where, fault in lab.faults.active.items()
            },
            "ports": self._port_states(),
            "switches": {
                switch.name: {
                    "device_id": switch.device_id,
                    "p4runtime": switch.grpc_address,
                    "election_id": lab.controller.election_ids[switch.name],
                    "programmed": lab.controller.programmings.get(switch.name, 0),
                    "drift": drifts.get(switch.name),
                    "counters": _plain(counters[switch.name]) if switch.name in counters else None,
                }
                for switch in lab.switches
            },
        }

    def _port_states(self) -> dict[str, str]:
        """Return the state of every port of the fabric, at switches and at hosts."""
        fabric, names = self._lab.fabric, self._lab.network.names
        found = link_states(port.ref.ifname for switch in fabric.switches for port in switch.ports)
        for host in fabric.hosts:
            with namespaces.inside(names.host(host.name)):
                found |= link_states(port.ifname for port in host.ports)
        return found

    def _fault(self, request: Request) -> dict[str, Any]:
        fault = Fault(**request["fault"])
        self._lab.faults.prepare(fault)
        self._lab.faults.wait_prepared(fault)
        return asdict(self._lab.faults.apply(fault))

    def _faults(self, _request: Request) -> dict[str, Any]:
        """Return the active faults by place. This is faster than the request "status"."""
        return {"faults": {where: asdict(fault) for where, fault in self._lab.faults.active.items()}}

    def _counters(self, request: Request) -> dict[str, Any]:
        """Return the counters of one switch (None if it is off). This is faster than the request "status"."""
        name = request["switch"]
        if name not in {switch.name for switch in self._lab.fabric.switches}:
            raise InputError(f"no switch '{name}' in {self._lab.fabric.name}")
        found = self._lab.controller.counters(name).get(name)
        return {"counters": None if found is None else _plain(found)}

    def _ecmp(self, _request: Request) -> dict[str, Any]:
        """Install ECMP routes for plain IPv6 next to the SRv6 routes."""
        self._lab.controller.install_ecmp()
        return {}

    def _down(self, _request: Request) -> dict[str, Any]:
        self.stopping = True
        return {"pid": os.getpid()}

    def _restore(self, request: Request) -> dict[str, Any]:
        """Undo the fault at a place, or all faults if the place is None."""
        faults, where = self._lab.faults, request["where"]
        restored = faults.undo_all() if where is None else {where: faults.undo(where)}
        return {"restored": {place: asdict(moment) for place, moment in restored.items()}}


def _by_reason(drops: Any) -> dict[str, Any]:
    return {reason.name.lower(): asdict(count) for reason, count in drops.items()}


def _plain(counters: Any) -> dict[str, Any]:
    return {
        "rx": {port: asdict(count) for port, count in counters.rx.items()},
        "rx_high": {port: asdict(count) for port, count in counters.rx_high.items()},
        "tx": {port: asdict(count) for port, count in counters.tx.items()},
        "queues": {port: asdict(queue) for port, queue in counters.queues.items()},
        "sids": {sid: asdict(count) for sid, count in counters.sids.items()},
        "drops": _by_reason(counters.drops),
        "port_drops": {port: _by_reason(drops) for port, drops in counters.port_drops.items()},
    }


@dataclass(slots=True)
class _Client:
    """A connection of a client that has not sent its whole request yet."""

    connection: socket.socket
    deadline: float
    line: bytearray = field(default_factory=bytearray)

    def receive(self) -> bool:
        """Read the available bytes. Return True if the request is complete or the client has disconnected."""
        part = self.connection.recv(REQUEST_BYTES + 1)
        self.line += part
        return not part or b"\n" in part or len(self.line) > REQUEST_BYTES


def serve(lab: Lab, listener: socket.socket) -> None:
    """Answer requests until a "down" request. A slow client does not delay other clients."""
    daemon = Daemon(lab)
    clients: dict[int, _Client] = {}
    with selectors.DefaultSelector() as selector:

        def drop(client: _Client) -> None:
            selector.unregister(client.connection)
            del clients[client.connection.fileno()]
            client.connection.close()

        selector.register(listener, selectors.EVENT_READ)
        while not daemon.stopping:
            due = min((client.deadline for client in clients.values()), default=None)
            for key, _ in selector.select(None if due is None else max(0.0, due - time.monotonic())):
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    clients[connection.fileno()] = _Client(connection, time.monotonic() + REQUEST_S)
                    selector.register(connection, selectors.EVENT_READ)
                    continue
                client = clients[key.fd]
                try:
                    if client.receive():
                        _answer(client, daemon)
                        drop(client)
                except OSError:
                    LOGGER.warning("a client went away", exc_info=True)
                    drop(client)
            for client in [c for c in clients.values() if c.deadline < time.monotonic()]:
                LOGGER.warning("a client sent no request in time")
                drop(client)
        for client in list(clients.values()):
            drop(client)


def _answer(client: _Client, daemon: Daemon) -> None:
    if not client.line:
        return
    client.connection.settimeout(REQUEST_S)
    if len(client.line) > REQUEST_BYTES:
        answer = refusal(TooLongError(f"a line of more than {REQUEST_BYTES} bytes"))
    else:
        answer = carry_out(bytes(client.line), daemon.operations)
    client.connection.sendall(encode(answer))


def main(topology: str, target: str, log_dir: Path, status_fd: int, program: str = "") -> int:
    """Bring the lab up, serve requests until a signal or a "down" request, and take the lab down."""
    set_up_logging()
    with signals.as_exceptions():
        try:
            return _main(topology, target, log_dir, status_fd, program)
        except (signals.Ended, KeyboardInterrupt):
            return 0


def _main(topology: str, target: str, log_dir: Path, status_fd: int, program: str) -> int:
    names = Names.from_environment()
    os.set_inheritable(status_fd, False)
    with os.fdopen(status_fd, "w", buffering=1, encoding="utf-8") as status:

        def report(**words: object) -> None:
            status.write(json.dumps(words) + "\n")

        try:
            lab = Lab.up(
                load_fabric(topology),
                target,
                log_dir,
                names=names,
                say=lambda text: report(say=text),
                command=f"mrclab up --topology {topology}" + (f" --program {program}" if program else ""),
                pipeline=pipeline_of(program, log_dir),
            )
        except (InputError, BadInputError, MachineError) as error:
            report(**refusal(error))
            return error.exit_code
        except Exception as error:
            LOGGER.exception("could not bring the lab up")
            report(**refusal(error))
            return 1
        with lab, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            path = state.control_socket(names)
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            listener.listen()
            lab.network.stay()
            report(ready=True)
            status.close()
            try:
                serve(lab, listener)
            finally:
                if taken := lab.network.taken:
                    LOGGER.warning("%s", taken)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:6]))
