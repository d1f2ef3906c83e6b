"""The daemon that ``mrclab up`` leaves running: it has the lab, and a socket for other commands' requests.

Started as ``python -m mrclab.daemon TOPOLOGY TARGET LOG_DIR STATUS_FD``. It writes its progress to the status
descriptor, one JSON object per line (``say``: a line for the user; then ``ready``, or a refusal as in
`linux.requests`), and takes the lab down on SIGTERM.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from controller.fault_kinds import Fault
from linux.errors import BadInputError, InputError, MachineError
from linux.requests import Request, TooLongError, carry_out, encode, receive_line, refusal
from mrclab.control import control_socket
from mrclab.logs import set_up_logging
from testbed.lab import Lab
from testbed.names import Names
from topologies import load_fabric

LOGGER = logging.getLogger(__name__)
REQUEST_BYTES = 1 << 16
REQUEST_S = 5.0
"""A client that takes longer to send its request gets no answer."""


class Daemon:
    """The requests that a running lab takes."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.operations: Mapping[str, Callable[[Request], dict[str, Any]]] = {
            "status": self._status,
            "fault": self._fault,
            "restore": self._restore,
            "down": self._down,
        }
        self.stopping = False

    def _status(self, request: Request) -> dict[str, Any]:
        lab = self._lab
        counters = lab.controller.counters()
        # Reading all entries back takes longer than reading all counters: `status --watch` goes without.
        drifts = {d.switch: str(d) for d in (lab.controller.verify() if request.get("verify", True) else ())}
        return {
            "t_ns": time.monotonic_ns(),
            "topology": lab.fabric.name,
            "target": lab.target.name,
            "faults": {
                where: asdict(fault) | {"times_down": len(lab.faults.transitions(where)) or 1}
                for where, fault in lab.faults.active.items()
            },
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

    def _fault(self, request: Request) -> dict[str, Any]:
        fault = Fault(**request["fault"])
        self._lab.faults.prepare(fault)
        return asdict(self._lab.faults.apply(fault))

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


def serve(lab: Lab, listener: socket.socket, stop_fd: int) -> None:
    """Answer requests until one of them is "down" or ``stop_fd`` becomes readable."""
    daemon = Daemon(lab)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(stop_fd, selectors.EVENT_READ)
        while not daemon.stopping:
            for key, _ in selector.select():
                if key.fd == stop_fd:
                    return
                connection, _ = listener.accept()
                with connection:
                    try:
                        connection.sendall(encode(_answer(connection, daemon)))
                    except OSError:
                        LOGGER.warning("a client went away or sent no request", exc_info=True)


def _answer(connection: socket.socket, daemon: Daemon) -> dict[str, Any]:
    try:
        line = receive_line(connection, REQUEST_BYTES, REQUEST_S)
    except TooLongError as error:
        return refusal(error)
    connection.settimeout(REQUEST_S)
    return carry_out(line, daemon.operations)


def main(topology: str, target: str, log_dir: Path, status_fd: int) -> int:
    """Bring the lab up, report, serve until SIGTERM, take the lab down."""
    set_up_logging()
    names = Names.from_environment()
    stop_read, stop_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os.write(stop_write, b"."))
    os.set_inheritable(status_fd, False)
    with os.fdopen(status_fd, "w", buffering=1, encoding="utf-8") as status:

        def report(**words: object) -> None:
            status.write(json.dumps(words) + "\n")

        try:
            lab = Lab.up(
                load_fabric(topology), target, log_dir, names=names, say=lambda text: report(say=text)
            )
        except (InputError, BadInputError, MachineError) as error:
            report(**refusal(error))
            return error.exit_code
        except Exception as error:
            LOGGER.exception("could not bring the lab up")
            report(**refusal(error))
            return 1
        with lab, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            path = control_socket(names)
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            listener.listen()
            lab.network.record_process(os.getpid(), "daemon")
            lab.network.detach()
            report(ready=True)
            status.close()
            serve(lab, listener, stop_read)
            path.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])))
