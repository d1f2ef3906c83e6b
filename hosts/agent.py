"""The agent: the process on a host that owns the host's NIC and runs streams over it.

It runs in the host's namespace (`mrclab.hosts.worker`). It takes these requests (->: content of the answer):

    open      open the NIC of a host of a fabric, with a transport and its options, and create
              queue pairs                                         -> their attributes
    log       write events to a file from now on
    receive   prepare to check a stream                           -> where the sender may write
    send      prepare a stream to a peer
    connect   connect a queue pair to a peer, given the peer's attributes, with the profiles
              ``ev_profile`` and ``cc_profile`` (by default the profiles with id 1)
    profiles  carry out a request about the NIC's profiles (`mrclab.hosts.mrc.profiles.requests`), as
              `mrclab profile` does over the NIC's socket           -> its answer
    calibrate measure the RTT of the idle network, for NSCC       -> that RTT
    pace      set the rate cap, in bit/s
    start     start the streams
    status    report progress and counters
    beat      report how many packets were sent, and the EV retirements and gaps since the last `beat`. A
              gap is a time of more than ``gap_ns`` without a turn of the process's loop. From the first
              `beat` on, the process makes a turn every ``every_ns``, unless something blocks it
    watch     keep the newest events of paths in memory, for `news`
    news      report the progress of all queue pairs, the events since the last `news`, and the paths of
              the queue pairs in ``paths``
    stop      post no more messages
    ask       send endpoint requests to NICs (``targets``: host, ev, port from 1), without a queue pair, with
              ``op`` EV_PROBE or PORT_STATUS_UPDATE, in the class ``dscp``  -> the ids of the requests
    answers   return the answers to `ask` that have arrived, in order   -> id, port, RTT of each
    deny      avoid these links, and use all others again         -> the EVs that are now denied
    wait      answer when a condition holds, or at the latest after a given time. The condition is
              `restored` (no EV is assumed bad) or `drained` (all posted data is acknowledged)
    verify    compare the whole memory with the streams' data
    end_log   complete the log file                               -> the number of events in it

``receive``, ``send``, ``connect``, ``calibrate`` and ``status`` apply to one queue pair, ``qp`` (0, the
first, by default); all other requests apply to all queue pairs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mrclab.hosts.eventlog import EventLog
from mrclab.hosts.host_nic import HostNic
from mrclab.hosts.mrc import Endpoint
from mrclab.hosts.mrc.events import EndpointAnswered, EvRestored
from mrclab.hosts.mrc.wire import EndpointOp
from mrclab.hosts.nic.device import LINGER_NS, Device
from mrclab.hosts.nic.routes import ask_endpoints
from mrclab.hosts.observation import RecentEvents, flow_state, path_states
from mrclab.hosts.rdma.events import Event, EvState, SendCompleted
from mrclab.hosts.streams.rounds import Beat, Connection, Rounds
from mrclab.hosts.streams.stream import RemoteRegion, StreamPlan, StreamReceiver, StreamSender
from mrclab.hosts.worker import Answer, Operation, freeze_heap, resident_bytes, run
from mrclab.linux.requests import Request
from mrclab.linux.scheduling import take_cpu

MOST_ANSWERS = 4096
"""Largest number of answers to `ask` that are kept until the request `answers` returns them."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition for the request `wait`. Only an event of a ``deciding`` type can make it true."""

    holds: Callable[[], bool]
    deciding: tuple[type[Event], ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """A `wait` request that is not answered yet."""

    condition: Condition
    deadline_ns: int


class Agent:
    """One NIC with queue pairs, and streams over them."""

    def __init__(self) -> None:
        self._nic: HostNic | None = None
        self._connections: list[Connection] = []
        self._rounds: Rounds | None = None
        self._log: EventLog | None = None
        self._recent: RecentEvents | None = None
        self._answers: deque[EndpointAnswered] = deque(maxlen=MOST_ANSWERS)
        self._wait: Wait | None = None
        self._changed = False
        self.operations: Mapping[str, Operation] = {
            "open": self._open,
            "log": self._begin_log,
            "receive": self._receive,
            "send": self._send,
            "connect": self._connect,
            "calibrate": self._calibrate,
            "pace": self._pace,
            "start": self._start,
            "status": self._status,
            "beat": self._beat,
            "watch": self._watch,
            "news": self._news,
            "stop": self._stop,
            "deny": self._deny,
            "ask": self._ask,
            "answers": self._answered,
            "profiles": lambda request: {"answer": self.nic.profiles.requests.carry_out(request["request"])},
            "wait": self._begin_wait,
            "verify": self._verify,
            "end_log": self._end_log,
        }
        self._conditions = {
            "restored": Condition(
                lambda: not any(self._bad_evs(c) for c in self._connections), (EvRestored,)
            ),
            "drained": Condition(lambda: all(s.drained for s in self._senders()), (SendCompleted,)),
        }

    def _senders(self) -> list[StreamSender]:
        return [c.sender for c in self._connections if c.sender is not None]

    def _begin_wait(self, request: Request) -> Answer:
        deadline_ns = self.device.now() + round(request["timeout_s"] * 1e9)
        self._wait = Wait(self._conditions[request["what"]], deadline_ns)
        self._changed = True
        return self._waited()

    def _waited(self) -> Answer:
        """Return the answer to a `wait` that is over, or None. Each `wait` is answered once."""
        if self._wait is None:
            return None
        over = self.device.now() >= self._wait.deadline_ns
        if not self._changed and not over:
            return None
        self._changed = False
        holds = self._wait.condition.holds()
        if not holds and not over:
            return None
        self._wait = None
        return {"holds": holds}

    @property
    def nic(self) -> HostNic:
        """The NIC. Raise RuntimeError before it is opened."""
        if self._nic is None:
            raise RuntimeError("'open' comes first")
        return self._nic

    @property
    def device(self) -> Device:
        """The NIC's device. Raise RuntimeError before it is opened."""
        return self.nic.device

    def close(self) -> None:
        """Complete the log. The NIC closes when the process ends."""
        if self._log is not None:
            self._log.close()

    def turn(self, control_fd: int) -> tuple[bool, Answer]:
        """Do the NIC's work. Return whether a request has arrived, and the answer to a finished `wait`."""
        if self._rounds is None:
            return True, None
        wait = self._wait
        until_ns, deciding = (None, ()) if wait is None else (wait.deadline_ns, wait.condition.deciding)
        profiles = self.nic.profiles
        readable, decided = self._rounds.run(until_ns, [control_fd, *profiles.descriptors()], deciding)
        if readable:
            profiles.serve(readable)
        requested = control_fd in readable
        self._changed = self._changed or decided or requested
        return requested, self._waited()

    def _open(self, request: Request) -> dict[str, Any]:
        realtime, awake = request.get("realtime", True), request.get("awake", True)
        refused = take_cpu(request["cpu"], realtime=realtime, awake=awake)
        self._nic = nic = HostNic.open(request, LINGER_NS if request["cpu"] is not None else 0)
        qps = nic.create_qps(request.get("qps", 1))
        self._connections = [Connection(qpn) for qpn in nic.qpns]
        self._rounds = Rounds(nic.device)
        self._rounds.observe = self._observe
        self._rounds.connections = {connection.qpn: connection for connection in self._connections}
        return {"qps": qps, "refused": refused}

    def _observe(self, event: Event) -> None:
        if isinstance(event, EndpointAnswered):
            self._answers.append(event)
        else:
            self.nic.profiles.observe(event)

    def _ask(self, request: Request) -> dict[str, Any]:
        nic, dscp, status = self.nic, request.get("dscp"), request.get("port_status")
        targets = [(target["host"], target["ev"], target["port"]) for target in request["targets"]]
        op, now_ns = EndpointOp[request["op"]], nic.device.now()
        asked = ask_endpoints(nic.device.endpoint, nic.fabric, nic.host, op, targets, now_ns, dscp, status)
        return {"requests": asked}

    def _answered(self, _request: Request) -> dict[str, Any]:
        found, self._answers = self._answers, deque(maxlen=MOST_ANSWERS)
        return {
            "answers": [
                {"request": a.request_id, "port": a.port + 1, "rtt_ns": a.rtt_ns, "adjusted": a.adjusted}
                for a in found
            ]
        }

    def _connection(self, request: Request) -> Connection:
        number: int = request.get("qp", 0)
        return self._connections[number]

    def _begin_log(self, request: Request) -> dict[str, Any]:
        log = EventLog(
            Path(request["path"]),
            self.nic.host,
            self.device.now(),
            completions=request.get("completions", True),
            keep_bytes=request.get("keep_bytes"),
        )
        self._set_log(log)
        return {}

    def _set_log(self, log: EventLog | None) -> None:
        self._log = log
        if self._rounds is not None:
            self._rounds.log = log

    def _receive(self, request: Request) -> dict[str, Any]:
        connection = self._connection(request)
        receiver = StreamReceiver(self.device, StreamPlan(**request["plan"]), connection.qpn)
        connection.receiver = receiver
        return asdict(receiver.remote)

    def _send(self, request: Request) -> dict[str, Any]:
        connection = self._connection(request)
        remote = RemoteRegion(**request["remote"])
        sender = StreamSender(self.device, connection.qpn, remote, StreamPlan(**request["plan"]))
        connection.sender = sender
        return {}

    def _connect(self, request: Request) -> dict[str, Any]:
        qpn, peer = self._connection(request).qpn, request["peer"]
        profiles = request.get("ev_profile"), request.get("cc_profile")
        self.nic.connect(qpn, peer, request["attributes"], *profiles)
        freeze_heap()
        return {}

    def _calibrate(self, request: Request) -> dict[str, Any]:
        return {"base_rtt_ns": self.nic.calibrate(self._connection(request).qpn)}

    def _pace(self, request: Request) -> dict[str, Any]:
        endpoint = self.device.endpoint
        if not isinstance(endpoint, Endpoint):
            raise TypeError("only MRC has a rate cap")
        endpoint.set_rate_cap(request["rate_bps"])
        return {}

    def _start(self, _request: Request) -> dict[str, Any]:
        if not self._senders():
            raise RuntimeError("'send' comes before 'start'")
        for sender in self._senders():
            sender.start()
        return {}

    def _deny(self, request: Request) -> dict[str, Any]:
        denied: set[int] = set()
        for qpn in self.nic.peers:
            denied.update(self.nic.deny(qpn, request["links"]))
            self.nic.profiles.deny_again(qpn)
        return {"evs": sorted(denied)}

    def _stop(self, _request: Request) -> dict[str, Any]:
        for sender in self._senders():
            sender.stop()
        return {}

    def _status(self, request: Request) -> dict[str, Any]:
        endpoint = self.device.endpoint
        connection = self._connection(request)
        answer: dict[str, Any] = {
            "counters": asdict(endpoint.qp_counters(connection.qpn)),
            "bad_evs": self._bad_evs(connection),
            "socket_drops": self.device.drops(),
            "refused_frames": self.device.refused(),
            "frame_drops": endpoint.drops.total(),
            "drops": asdict(endpoint.drops),
            "rss_bytes": resident_bytes(),
        }
        if connection.sender is not None:
            sender = connection.sender
            answer["posted"] = sender.posted
            answer["posted_bytes"] = sender.posted_bytes
            answer["completed"] = sender.completed
            answer["drained"] = sender.drained
            answer["failed"] = sender.failed
        if connection.receiver is not None:
            receiver = connection.receiver
            answer["received"] = receiver.received
            answer["bytes_delivered"] = receiver.bytes_delivered
            answer["problem"] = receiver.problem
        return answer

    def _beat(self, request: Request) -> dict[str, Any]:
        if self._rounds is None:
            raise RuntimeError("'open' comes first")
        beat = self._rounds.beat
        if beat is None:
            beat = self._rounds.beat = Beat(request["every_ns"], request["gap_ns"])
        sent = sum(self.device.endpoint.qp_counters(c.qpn).sent for c in self._connections)
        retired_ns = beat.retired_ns
        return {"sent": sent, "retired_ns": retired_ns, "gaps": beat.take()}

    def _watch(self, _request: Request) -> dict[str, Any]:
        if self._rounds is None:
            raise RuntimeError("'open' comes first")
        self._recent = self._rounds.log = RecentEvents()
        return {}

    def _news(self, request: Request) -> dict[str, Any]:
        if self._recent is None:
            raise RuntimeError("'watch' comes first")
        endpoint, connections = self.device.endpoint, self._connections
        return {
            "t_ns": self.device.now(),
            "flows": [flow_state(endpoint, connection) for connection in connections],
            "events": self._recent.take(),
            "paths": {
                str(number): path_states(endpoint, connections[number]) for number in request.get("paths", ())
            },
        }

    def _bad_evs(self, connection: Connection) -> list[int]:
        evs = self.device.endpoint.ev_counters(connection.qpn)
        return [ev.ev for ev in evs if ev.state is EvState.ASSUMED_BAD]

    def _verify(self, _request: Request) -> dict[str, Any]:
        receivers = [c.receiver for c in self._connections]
        return {"problems": [r.memory_problem() if r is not None else None for r in receivers]}

    def _end_log(self, _request: Request) -> dict[str, Any]:
        if self._log is None:
            raise RuntimeError("'log' comes first")
        log = self._log
        self._set_log(None)
        log.close()
        return {"events": log.written, "lost": log.lost}


def main() -> None:
    """Run the agent process."""
    run(Agent())


if __name__ == "__main__":
    main()
