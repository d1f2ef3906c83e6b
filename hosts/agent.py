"""The agent: the process on a host that owns its NIC and runs a stream over it.

Started in the host's namespace as ``python -m hosts.agent CONTROL_FD`` with one end of a socket pair, over
which whoever runs the experiment commands it: a JSON object per line each way, answered in order.

    open      which host of which fabric, with which options      -> the queue pair's attributes
    receive   get ready to check a stream                         -> where the sender may write
    send      prepare a stream to a peer
    connect   the peer's attributes
    start     begin to post
    status    progress and counters
    stop      post no more
    wait      answers when something holds, or when its time is over: `restored`, no EV is assumed bad;
              `drained`, all that was posted is acknowledged
    log       write the event log to a file
"""

from __future__ import annotations

import gc
import logging
import os
import random
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hosts.attributes import attributes_from_dict, attributes_to_dict
from hosts.commands import carry_out, reply
from hosts.device import Device
from hosts.eventlog import write_log
from hosts.mrc import EvState, MrcConfig
from hosts.mrc.events import Event, EvRestored, SendCompleted
from hosts.routes import nic_addresses, remote_paths
from hosts.stream import RemoteRegion, StreamPlan, StreamReceiver, StreamSender
from topologies import Fabric, build_fabric

LOGGER = logging.getLogger(__name__)
# After anything else that happens, what a `wait` waits for holds no more than before.
DECIDING = (EvRestored, SendCompleted)


@dataclass(frozen=True, slots=True)
class Wait:
    """A `wait` command that is not answered yet."""

    holds: Callable[[], bool]
    deadline_ns: int


class Agent:
    """One NIC with one queue pair, and a stream over it in one direction."""

    def __init__(self) -> None:
        self._fabric: Fabric | None = None
        self._device: Device | None = None
        self._host = ""
        self._qpn = 0
        self._sender: StreamSender | None = None
        self._receiver: StreamReceiver | None = None
        self._events: list[Event] = []
        self._wait: Wait | None = None
        self._changed = False
        self._operations: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "open": self._open,
            "receive": self._receive,
            "send": self._send,
            "connect": self._connect,
            "start": self._start,
            "status": self._status,
            "stop": self._stop,
            "log": self._log,
        }
        self._conditions: dict[str, Callable[[], bool]] = {
            "restored": lambda: not self._bad_evs(),
            "drained": lambda: self._sender is None or self._sender.drained,
        }

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """Carries out one command. None where the answer is to come later, from ``waited``."""
        if request["do"] == "wait":
            deadline_ns = self.device.now() + round(request["timeout_s"] * 1e9)
            self._wait = Wait(self._conditions[request["what"]], deadline_ns)
            self._changed = True
            return self.waited()
        return self._operations[request["do"]](request)

    def waited(self) -> dict[str, Any] | None:
        """The answer to a `wait` that is over, once."""
        if self._wait is None:
            return None
        over = self.device.now() >= self._wait.deadline_ns
        if not self._changed and not over:
            return None
        self._changed = False
        holds = self._wait.holds()
        if not holds and not over:
            return None
        self._wait = None
        return {"holds": holds}

    @property
    def device(self) -> Device:
        """The NIC. Raises RuntimeError before it is opened."""
        if self._device is None:
            raise RuntimeError("'open' comes first")
        return self._device

    def turn(self, control_fd: int) -> bool:
        """Waits for something, does it, and returns whether a command has come."""
        if self._device is None:
            return True
        if self._sender is not None:
            self._sender.tick()
        due = [self._sender.next_due() if self._sender is not None else None]
        due.append(self._wait.deadline_ns if self._wait is not None else None)
        commanded = self._device.turn(min((t for t in due if t is not None), default=None), [control_fd])
        for event in self._device.events():
            self._events.append(event)
            self._changed = self._changed or isinstance(event, DECIDING)
            if self._receiver is not None:
                self._receiver.on_event(event)
            if self._sender is not None:
                self._sender.on_event(event)
        return bool(commanded)

    def _open(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if request["cpu"] is not None:
            os.sched_setaffinity(0, {request["cpu"]})
        self._fabric = build_fabric(request["topology_yaml"], request["topology"])
        self._host = request["host"]
        ports = self._fabric.host(self._host).ports
        self._device = Device(
            nic_addresses(self._fabric, self._host),
            [port.ifname for port in ports],
            MrcConfig(**request["config"]),
            random.Random(request["seed"]),
        )
        self._qpn = self._device.endpoint.create_qp()
        return attributes_to_dict(self._device.endpoint.local_attributes(self._qpn))

    def _receive(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._receiver = StreamReceiver(self.device, StreamPlan(**request["plan"]))
        return asdict(self._receiver.remote)

    def _send(self, request: Mapping[str, Any]) -> dict[str, Any]:
        remote = RemoteRegion(**request["remote"])
        self._sender = StreamSender(self.device, self._qpn, remote, StreamPlan(**request["plan"]))
        return {}

    def _connect(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if self._fabric is None:
            raise RuntimeError("'open' comes first")
        peer = attributes_from_dict(request["attributes"])
        paths = remote_paths(self._fabric, self._host, request["peer"])
        self.device.endpoint.connect(self._qpn, peer, paths)
        # What exists by now stays: a full garbage collection in the middle of a run would stall the NIC.
        gc.collect()
        gc.freeze()
        return {}

    def _start(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        if self._sender is None:
            raise RuntimeError("'send' comes before 'start'")
        self._sender.start()
        return {}

    def _stop(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        if self._sender is not None:
            self._sender.stop()
        return {}

    def _status(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        endpoint = self.device.endpoint
        answer: dict[str, Any] = {
            "counters": asdict(endpoint.qp_counters(self._qpn)),
            "bad_evs": self._bad_evs(),
            "socket_drops": self.device.drops(),
            "frame_drops": endpoint.drops.total(),
        }
        if self._sender is not None:
            answer["posted"] = self._sender.posted
            answer["completed"] = self._sender.completed
            answer["drained"] = self._sender.drained
            answer["failed"] = self._sender.failed
        if self._receiver is not None:
            answer["received"] = self._receiver.received
            answer["bytes_delivered"] = self._receiver.bytes_delivered
            answer["problem"] = self._receiver.problem
        return answer

    def _bad_evs(self) -> list[int]:
        evs = self.device.endpoint.ev_counters(self._qpn)
        return [ev.ev for ev in evs if ev.state is EvState.ASSUMED_BAD]

    def _log(self, request: Mapping[str, Any]) -> dict[str, Any]:
        write_log(self._events, Path(request["path"]))
        return {"events": len(self._events)}


def serve(control: socket.socket) -> None:
    """Runs an agent until the other end of the control socket closes."""
    agent = Agent()
    with control, control.makefile("rb", buffering=0) as commands:
        while True:
            commanded = agent.turn(control.fileno())
            answer = agent.waited()
            if commanded:
                line = commands.readline()
                if not line:
                    return
                answer = carry_out(line, agent.answer)
            reply(control, answer)


def main() -> None:
    """Entry point of the process."""
    logging.basicConfig(level=logging.WARNING)
    try:
        # A NIC does not queue for a CPU. The kernel keeps a part of each second for everybody else.
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        LOGGER.warning("not allowed to run with real-time priority: expect longer stalls")
    serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
