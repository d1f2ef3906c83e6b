"""The requests of a program, recorded by `mrclab exec --record`, as a graph. docs/programs.md has the format.

In a replay, a request waits for two events, because the program may have waited for these events. Both
happened before the program posted the request. One event is the newest completion on the request's queue
pair. The other event is the newest completion, or arrival of an immediate, on the request's host. After both
events, the request waits as long as in the recording.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from mrclab.hosts.workloads.graph import AFTER, MAX_BYTES, MAX_DURATION_NS, MAX_RANKS, WAIT, Graph, Op
from mrclab.linux.errors import DAMAGE, InputError
from mrclab.topologies import Fabric

FORM: Final = "mrclab.requests/1"
MAX_REQUESTS: Final = 200_000
"""Largest number of requests of one graph."""
MAX_LINES: Final = 4_000_000
OPS_PER_REQUEST: Final = 3
MOST_NS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Request:
    """A write that a program posted on ``host`` and that succeeded. Times are CLOCK_MONOTONIC ns."""

    host: str
    peer: str
    qpn: int
    peer_qpn: int
    size_bytes: int
    imm: bool
    signaled: bool
    """True if the program got a completion for this write."""
    posted_ns: int
    completed_ns: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """The time of a completed receive on a queue pair of the program."""

    host: str
    qpn: int
    at_ns: int


@dataclass(slots=True)
class Recorded:
    """The contents of a recording. ``hosts`` has the fabric's hosts, ``failed`` counts failed requests."""

    hosts: tuple[str, ...] = ()
    requests: list[Request] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    failed: int = 0


def header(fabric: Fabric, host: str) -> str:
    """Return the first line of a host's part of a recording."""
    hosts = [each.name for each in fabric.hosts]
    return json.dumps({"form": FORM, "topology": fabric.name, "host": host, "hosts": hosts}) + "\n"


def read_recorded(text: str, where: str) -> Recorded:
    """Read a recording of one host or several.

    Raise InputError, with the line number, if the text is invalid or has no successful request.
    """
    found = parse_recorded(text, where)
    if not found.requests:
        raise InputError("it has no request that was carried out: nothing to replay", where=where)
    return found


def parse_recorded(text: str, where: str) -> Recorded:
    """Read a recording, which may be empty. Raise InputError, with the line number, if the text is invalid.

    If the recording was interrupted, its last line is incomplete and is left out.
    """
    found = Recorded()
    host = ""
    lines = text.split("\n")
    if len(lines) > MAX_LINES:
        raise InputError(f"{len(lines)} lines: {MAX_LINES} at most", where=where)
    for number, line in enumerate(lines[:-1], 1):
        try:
            values = json.loads(line)
            if "form" in values:
                host = _header(values, found)
            elif not host:
                raise ValueError("the header is missing")
            elif "posted_ns" in values:
                _request(values, host, found)
            elif "received_ns" in values:
                at_ns = _whole(values, "received_ns", MOST_NS)
                found.arrivals.append(Arrival(host, _whole(values, "qpn", 1 << 24), at_ns))
            elif "left_out" not in values:
                raise ValueError("neither a request nor an arrival")
        except DAMAGE as error:
            why = str(error) if type(error) is ValueError else "no line of a recording"
            raise InputError(
                f"{why}: take a file of mrclab exec --record", where=where, line=number
            ) from None
    return found


def _whole(values: Mapping[str, Any], name: str, most: int) -> int:
    value = values.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"{name} is no whole number from 0 to {most}")
    return value


def _header(values: Mapping[str, Any], found: Recorded) -> str:
    if values["form"] != FORM:
        raise ValueError(f"another form than {FORM}")
    hosts = tuple(values["hosts"])
    if not all(isinstance(name, str) for name in hosts) or not 2 <= len(set(hosts)) == len(hosts):
        raise ValueError("its hosts are no names, each once")
    if found.hosts not in ((), hosts):
        raise ValueError("its parts are of different fabrics")
    if len(hosts) > MAX_RANKS or values["host"] not in hosts:
        raise ValueError("its host is none of its hosts")
    found.hosts = hosts
    return str(values["host"])


def _request(values: Mapping[str, Any], host: str, found: Recorded) -> None:
    peer = values["peer"]
    if peer not in found.hosts or peer == host:
        raise ValueError("its peer is no other host")
    request = Request(
        host,
        peer,
        _whole(values, "qpn", 1 << 24),
        _whole(values, "peer_qpn", 1 << 24),
        _whole(values, "bytes", MAX_BYTES),
        bool(_whole(values, "imm", 1)),
        bool(_whole(values, "signaled", 1)),
        _whole(values, "posted_ns", MOST_NS),
        _whole(values, "completed_ns", MOST_NS),
    )
    if request.completed_ns < request.posted_ns:
        raise ValueError("it is completed before it is posted")
    if _whole(values, "status", 1 << 16):
        found.failed += 1
    else:
        found.requests.append(request)


@dataclass(frozen=True, slots=True)
class _Event:
    """A completion or an arrival that a program got. It means that the rank's operation ``op`` has ended."""

    at_ns: int
    op: int


def recorded_graph(name: str, recorded: Recorded, pauses: float = 1.0, most: int = 0) -> Graph:
    """Return the graph of the first ``most`` requests (0: all requests).

    The operations of request k have the numbers 3 k (a pause), 3 k + 1 (the send) and 3 k + 2 (the receive).
    ``pauses`` is a factor for the times that programs waited before a request. Ranks are the hosts with
    requests, in the fabric's order. Raise InputError for too many requests.
    """
    requests = sorted(recorded.requests, key=attrgetter("posted_ns"))[: most or None]
    if len(requests) > MAX_REQUESTS:
        raise InputError(
            f"{len(requests)} requests: {MAX_REQUESTS} at most: replay the first ones (workload.requests)",
            where=name,
        )
    used = {host for request in requests for host in (request.host, request.peer)}
    rank_of = {host: rank for rank, host in enumerate(host for host in recorded.hosts if host in used)}
    told, completed = _told(recorded, requests)
    begin_ns = requests[0].posted_ns
    ranks: list[list[Op]] = [[] for _ in rank_of]
    for k, request in enumerate(requests):
        first = OPS_PER_REQUEST * k
        src, dst = rank_of[request.host], rank_of[request.peer]
        waits = [
            event
            for event in (
                _before(completed[request.host, request.qpn], request.posted_ns),
                _before(told[request.host], request.posted_ns),
            )
            if event is not None
        ]
        after = tuple(dict.fromkeys(event.op for event in waits))
        since_ns = max((event.at_ns for event in waits), default=begin_ns)
        pause_ns = min(round(pauses * (request.posted_ns - since_ns)), MAX_DURATION_NS)
        if pause_ns:
            stream = AFTER if after else WAIT
            ranks[src].append(Op(first, "compute", "pause", after, pause_ns, stream))
            after = (first,)
        size, words = request.size_bytes, f"request {k}"
        ranks[src].append(Op(first + 1, "send", words, after, size_bytes=size, peer=dst, tag=k))
        ranks[dst].append(Op(first + 2, "receive", words, size_bytes=size, peer=src, tag=k))
    return Graph(name, tuple(map(tuple, ranks)))


def _told(
    recorded: Recorded, requests: Sequence[Request]
) -> tuple[dict[str, list[_Event]], dict[tuple[str, int], list[_Event]]]:
    """Return completions and arrivals by host, and completions by queue pair, in order of time."""
    told: dict[str, list[_Event]] = defaultdict(list)
    completed: dict[tuple[str, int], list[_Event]] = defaultdict(list)
    sent: dict[tuple[str, int], deque[tuple[int, Request]]] = defaultdict(deque)
    for k, request in enumerate(requests):
        if request.signaled:
            event = _Event(request.completed_ns, OPS_PER_REQUEST * k + 1)
            told[request.host].append(event)
            completed[request.host, request.qpn].append(event)
        if request.imm:
            sent[request.peer, request.peer_qpn].append((k, request))
    for arrival in sorted(recorded.arrivals, key=attrgetter("at_ns")):
        # Writes of a queue pair arrive in the order of posting. So an arrival belongs to the oldest write
        # that has no arrival yet.
        if waiting := sent.get((arrival.host, arrival.qpn)):
            k, request = waiting.popleft()
            if arrival.at_ns >= request.posted_ns:
                told[arrival.host].append(_Event(arrival.at_ns, OPS_PER_REQUEST * k + 2))
    for events in (*told.values(), *completed.values()):
        events.sort(key=attrgetter("at_ns"))
    return told, completed


def _before(events: Sequence[_Event], at_ns: int) -> _Event | None:
    """Return the last event before a time, or None."""
    place = bisect_left(events, at_ns, key=attrgetter("at_ns"))
    return events[place - 1] if place else None
