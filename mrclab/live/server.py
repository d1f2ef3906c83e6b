"""The web server of the live page: its routes, the requests that it accepts, and Prometheus metrics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from mrclab.faults.kinds import Fault
from mrclab.hosts.worker import AgentError
from mrclab.linux.errors import MrclabError
from mrclab.live.plan import fault_request, traffic_plan
from mrclab.live.recording import SCRIPTS, Recording, changed, live_page, replay_page, thinned
from mrclab.live.serving import Access, EventStream, Guard, Role, event_line, page_routes, refused

Frame = Mapping[str, Any]
TIMES = ("first_loss", "detected", "rerouted", "recovered")


class SessionCollector(Collector):
    """Prometheus metrics of the newest page update. ``kept_bytes`` is the memory for each kind of record."""

    def __init__(self, newest: Callable[[], Frame | None], kept_bytes: Mapping[str, int]) -> None:
        self._newest = newest
        self._kept_bytes = kept_bytes

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics."""
        frame = self._newest()
        if frame is None or "transports" not in frame:
            return
        rate = GaugeMetricFamily(
            "mrclab_delivered_bits_per_second", "Payload delivered.", labels=("transport", "source", "target")
        )
        sent = CounterMetricFamily("mrclab_packets_sent", "Packets sent.", labels=("transport",))
        resent = CounterMetricFamily("mrclab_packets_retransmitted", "Sent again.", labels=("transport",))
        paths = GaugeMetricFamily(
            "mrclab_active_paths", "EVs in use by the flow that is shown.", labels=("transport",)
        )
        for name, one in frame["transports"].items():
            for source, target, bps in one["flows"]:
                rate.add_metric((name, source, target), bps)
            sent.add_metric((name,), one["sent"])
            resent.add_metric((name,), one["resent"])
            paths.add_metric((name,), sum(row[3] for row in frame["paths"].get(name, ())))
        faults = GaugeMetricFamily("mrclab_active_faults", "Faults in the fabric now.")
        faults.add_metric((), len(frame["faults"]))
        times = GaugeMetricFamily(
            "mrclab_last_fault_seconds",
            "Times of the newest fault that a transport felt, since the fault.",
            labels=("transport", "time"),
        )
        last: dict[str, Mapping[str, Any]] = {}
        for card in frame["cards"]:
            last |= {name: result for name, result in card["results"].items() if result["felt"]}
        for name, result in last.items():
            for what in TIMES:
                value = result[f"{what}_us"]
                if value is not None:
                    times.add_metric((name, what), value / 1e6)
        kept = GaugeMetricFamily(
            "mrclab_live_kept_bytes", "What the page keeps of the past.", labels=("what",)
        )
        for what, count in self._kept_bytes.items():
            kept.add_metric((what,), count)
        yield kept
        yield from (rate, sent, resent, paths, faults, times)


def exposition(newest: Callable[[], Frame | None], kept_bytes: Mapping[str, int]) -> bytes:
    """Return all metrics as text in Prometheus's format."""
    registry = CollectorRegistry()
    registry.register(SessionCollector(newest, kept_bytes))
    return generate_latest(registry)


ASSETS = dict.fromkeys(SCRIPTS, "text/javascript") | {"live.css": "text/css"}
MOST_BODY_BYTES = 1 << 16
KEEP_ALIVE_S = 10.0
MOST_WORDS = 4000
"""The most characters in the title of a replay, and in its notes."""
MOST_DIGITS = 9
"""The most digits in the number of a card. Python refuses to read very long numbers."""


class Hub:
    """A distributor of page updates (frames) to all open pages. The session's thread calls `put`."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queues: set[asyncio.Queue[dict[str, Any]]] = set()
        self.newest: dict[str, Any] | None = None
        self.over: str | None = None
        self._when_over: Callable[[], object] = lambda: None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Deliver page updates in this event loop from now on."""
        self._loop = loop

    def when_over(self, call: Callable[[], object]) -> None:
        """Call ``call`` in the server's event loop after the session has ended."""
        self._when_over = call

    def put(self, frame: dict[str, Any]) -> None:
        """Store a page update and send it to all pages. Any thread may call this."""
        if "over" in frame:
            self.over = frame["over"]
        else:
            self.newest = frame
            self._recording.add(frame)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, frame)

    def _deliver(self, frame: dict[str, Any]) -> None:
        for waiting in self._queues:
            while waiting.full():  # a page is slow: drop its oldest update
                waiting.get_nowait()
            waiting.put_nowait(frame)
        if "over" in frame:
            self._when_over()

    async def frames(self) -> AsyncGenerator[dict[str, Any] | None, None]:
        """Yield each page update when it arrives. After `KEEP_ALIVE_S` without an update, yield None."""
        waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue(maxsize=4)
        self._queues.add(waiting)
        try:
            while self.over is None:
                try:
                    yield await asyncio.wait_for(waiting.get(), KEEP_ALIVE_S)
                except TimeoutError:
                    yield None
            yield {"over": self.over}
        finally:
            self._queues.discard(waiting)


class Session(Protocol):
    """The methods of a session that the server calls. A session runs a testbed or the simulator."""

    gone: str | None
    """The reason if an error has ended the session, otherwise None."""

    @property
    def topology(self) -> str:
        """The name of the fabric."""

    def plan_document(self) -> dict[str, Any]:
        """Return the present traffic in JSON types."""

    def do(self, work: Callable[[], Any]) -> Future[Any]:
        """Run ``work`` soon in the session's thread, and return a future of its result."""

    def make_fault(self, fault: Fault) -> dict[str, Any]:
        """Make a fault."""

    def undo(self, where: str | None) -> dict[str, Any]:
        """Undo the fault at a place, or all faults if ``where`` is None."""

    def set_traffic(self, plan: Any) -> dict[str, Any]:
        """Replace the traffic by the traffic of a plan from ``read_traffic``."""

    def set_mapper(self, on: bool) -> dict[str, Any]:
        """Start or end Clustermapper."""

    def show(self, flow: int) -> dict[str, Any]:
        """Choose the flow whose paths the page shows."""

    def packets(self, number: int, transport: str) -> dict[str, Any]:
        """Return the transmissions of a transport around the fault of card ``number``."""

    def counters(self, switch: str) -> dict[str, Any]:
        """Return the counters of a switch."""

    def evs(self, source: str, target: str) -> list[list[Any]]:
        """Return the paths between two hosts."""

    def busiest(self, transport: str) -> str | None:
        """Return a T0-T1 link that the shown flow of a transport uses now, or None."""

    def kept_bytes(self) -> dict[str, int]:
        """Return how many bytes of memory the stored records need, by kind of record."""


Wish = Callable[[Mapping[str, Any]], dict[str, Any]]


def application(
    session: Session,
    hub: Hub,
    recording: Recording,
    access: Access,
    *,
    read_traffic: Callable[[object], Any] = traffic_plan,
    wishes: Mapping[str, Wish] | None = None,
) -> Starlette:
    """Return the web application of a session.

    ``read_traffic`` checks a page's request for traffic and returns a plan. ``wishes`` has further kinds of
    requests, by name.
    """

    async def about(request: Request) -> Response:
        owner = request.scope["role"] is Role.OWNER
        return JSONResponse({**recording.about, "owner": owner, "plan": session.plan_document()})

    async def events(request: Request) -> Response:
        changes = "changes" in request.query_params

        async def lines() -> AsyncGenerator[str, None]:
            before: Mapping[str, Any] = {}
            async with aclosing(hub.frames()) as frames:
                async for frame in frames:
                    if frame is None:
                        yield ": still here\n\n"
                        continue
                    told = changed(frame, before) if changes else frame
                    before = frame
                    yield event_line(told)

        return EventStream(lines())

    async def state(_request: Request) -> Response:
        if hub.over is not None:
            return refused(410, hub.over)
        return JSONResponse({"about": {"topology": session.topology}, "frame": hub.newest})

    async def recent(_request: Request) -> Response:
        frames = await asyncio.to_thread(lambda: thinned(recording.recent()))
        return JSONResponse({"frames": frames})

    saving = asyncio.Lock()
    """One replay at a time: each takes some 100 MiB of memory, and seconds of a CPU."""

    async def replay(request: Request) -> Response:
        async with saving:
            return await _replay(request)

    async def _replay(request: Request) -> Response:
        seconds = request.query_params.get("seconds")
        try:
            frames = await asyncio.to_thread(recording.frames, None if seconds is None else float(seconds))
        except ValueError:
            return refused(400, f"seconds is a number, not '{seconds}'")
        if not frames:
            return refused(400, "nothing was seen in this time: try again in a second")
        packets = await _packets_of(session, frames)
        words = {name: request.query_params.get(name, "")[:MOST_WORDS] for name in ("title", "notes")}
        about = {**recording.about, **{name: text for name, text in words.items() if text}}
        text = await asyncio.to_thread(replay_page, about, frames, packets)
        name = 'attachment; filename="mrclab-replay.html"'
        return HTMLResponse(text, headers={"Content-Disposition": name})

    async def metrics(_request: Request) -> Response:
        kept = {**session.kept_bytes(), "recording": recording.held_bytes}
        return Response(exposition(lambda: hub.newest, kept), media_type="text/plain; version=0.0.4")

    async def fault(request: Request) -> Response:
        wanted = fault_request(await _body(request))
        return await _done(session, lambda: session.make_fault(wanted))

    async def restore(request: Request) -> Response:
        where = _mapping(await _body(request)).get("where")
        if where is not None and not isinstance(where, str):
            return refused(400, "where is the place of a fault, or null for all")
        return await _done(session, lambda: session.undo(where))

    async def traffic(request: Request) -> Response:
        plan = read_traffic(await _body(request))
        return await _done(session, lambda: session.set_traffic(plan))

    async def mapper(request: Request) -> Response:
        on = _mapping(await _body(request)).get("on")
        if not isinstance(on, bool):
            return refused(400, "on is true or false")
        return await _done(session, lambda: session.set_mapper(on))

    async def show(request: Request) -> Response:
        flow = _mapping(await _body(request)).get("flow")
        if not isinstance(flow, int):
            return refused(400, "flow is the number of a flow")
        return await _done(session, lambda: session.show(flow))

    async def packets(request: Request) -> Response:
        words, transport = request.path_params["number"], request.path_params["transport"]
        if not (words.isdecimal() and len(words) <= MOST_DIGITS):
            return refused(404, "there is no card with this number")
        return await _done(session, lambda: session.packets(int(words), transport))

    async def counters(request: Request) -> Response:
        switch = request.path_params["switch"]
        return await _done(session, lambda: session.counters(switch))

    async def evs(request: Request) -> Response:
        source, target = request.path_params["source"], request.path_params["target"]
        found = session.evs(source, target)
        recording.note_paths(f"{source}>{target}", found)
        return JSONResponse({"evs": found})

    async def used(request: Request) -> Response:
        transport = request.path_params["transport"]
        return await _done(session, lambda: {"link": session.busiest(transport)})

    def further(name: str, wish: Wish) -> Route:
        async def carry_out(request: Request) -> Response:
            given = _mapping(await _body(request))
            return await _done(session, lambda: wish(given))

        return Route(f"/{name}", _caught(carry_out), methods=["POST"])

    return Starlette(
        routes=[
            *(further(name, wish) for name, wish in (wishes or {}).items()),
            *page_routes(live_page, ASSETS),
            Route("/about", about),
            Route("/events", events),
            Route("/state", state),
            Route("/recent", recent),
            Route("/replay.html", replay),
            Route("/metrics", metrics),
            Route("/fault", _caught(fault), methods=["POST"]),
            Route("/restore", _caught(restore), methods=["POST"]),
            Route("/traffic", _caught(traffic), methods=["POST"]),
            Route("/show", _caught(show), methods=["POST"]),
            Route("/mapper", _caught(mapper), methods=["POST"]),
            Route("/packets/{number}/{transport}", _caught(packets)),
            Route("/counters/{switch}", _caught(counters)),
            Route("/used/{transport}", _caught(used)),
            Route("/evs/{source}/{target}", _caught(evs)),
        ],
        middleware=[Middleware(Guard, access=access)],
    )


async def _body(request: Request) -> object:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BODY_BYTES:
            raise ValueError(f"a request has at most {MOST_BODY_BYTES} bytes")
    try:
        found: object = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise ValueError("a request is JSON") from None
    return found


def _mapping(body: object) -> Mapping[str, Any]:
    if not isinstance(body, dict):
        raise ValueError("a request is a JSON object")
    return body


Handler = Callable[[Request], Awaitable[Response]]


def _caught(handler: Handler) -> Handler:
    """Return a handler that calls ``handler``, and answers bad input with an error of one line."""

    async def work(request: Request) -> Response:
        try:
            return await handler(request)
        except (MrclabError, ValueError) as error:
            return refused(400, str(error))

    return work


async def _done(session: Session, work: Callable[[], dict[str, Any]]) -> Response:
    """Run ``work`` in the session's thread and return its result as the answer."""
    if session.gone is not None:
        return refused(410, session.gone)
    try:
        return JSONResponse(await asyncio.wrap_future(session.do(work)))
    except (AgentError, OSError) as error:
        return refused(503, str(error))


async def _packets_of(session: Session, frames: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the stored packets around the faults that the last page update in ``frames`` has."""
    found: dict[str, Any] = {}
    for card in frames[-1]["cards"] if frames else ():
        for transport in card["results"]:
            try:
                work = partial(session.packets, card["number"], transport)
                kept = await asyncio.wrap_future(session.do(work))
            except (MrclabError, OSError, AgentError):
                continue
            found[f"{card['number']}/{transport}"] = kept
    return found
