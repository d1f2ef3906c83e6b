"""The answers of the page's server to each kind of client. A fake session records the requests."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import httpx
import pytest

from mrclab.faults.kinds import Fault
from mrclab.linux.errors import InputError
from mrclab.live import server
from mrclab.live.describe import evs_between
from mrclab.live.plan import TrafficPlan
from mrclab.live.recording import SHOWN_FRAMES, Recording
from mrclab.live.server import MOST_BODY_BYTES, Hub, application
from mrclab.live.serving import Access
from mrclab.topologies import load_fabric

HOST = "127.0.0.1:8047"
OWNER, WATCHER = {"Authorization": "Bearer own"}, {"Authorization": "Bearer watch"}


class Asked:
    """A fake session that records each request and carries it out at once."""

    def __init__(self) -> None:
        self.fabric = load_fabric("tiny")
        self.topology = "tiny"
        self.gone: str | None = None
        self.made: list[object] = []

    def do(self, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
        return future

    def plan_document(self) -> dict[str, Any]:
        return TrafficPlan().model_dump()

    def evs(self, source: str, target: str) -> list[list[Any]]:
        return evs_between(self.fabric, source, target)

    def make_fault(self, fault: Fault) -> dict[str, Any]:
        if fault.where == "nowhere":
            raise InputError("no link 'nowhere' in tiny")
        self.made.append(fault)
        return {"card": 1, "where": fault.where}

    def undo(self, where: str | None) -> dict[str, Any]:
        self.made.append(("undo", where))
        return {"restored": []}

    def set_traffic(self, plan: TrafficPlan) -> dict[str, Any]:
        self.made.append(plan)
        return {}

    def set_mapper(self, on: bool) -> dict[str, Any]:
        self.made.append(("mapper", on))
        return {"on": on}

    def show(self, flow: int) -> dict[str, Any]:
        self.made.append(("show", flow))
        return {}


@pytest.fixture
def asked() -> Asked:
    return Asked()


Ask = Callable[..., httpx.Response]


@pytest.fixture
def ask(asked: Asked) -> Ask:
    recording = Recording({"fabric": {"name": "tiny"}})
    hub = Hub(recording)
    app = application(asked, hub, recording, Access("own", "watch", frozenset({"127.0.0.1"})))  # type: ignore[arg-type]

    def send(
        method: str,
        path: str,
        host: str = HOST,
        headers: dict[str, str] | None = None,
        **options: Any,
    ) -> httpx.Response:
        async def story() -> httpx.Response:
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
                return await client.request(method, path, headers=headers, **options)

        return asyncio.run(story())

    return send


CUT = {"kind": "blackhole", "where": "p0-t0-0:p0-t1-0"}


def test_the_printed_address_leads_to_the_page_and_leaves_a_cookie(ask: Ask) -> None:
    first = ask("GET", "/?token=own")
    assert first.status_code == 303
    cookie = first.headers["set-cookie"]
    assert cookie.startswith("mrclab-token-8047=")  # so another page of this machine can keep its own cookie
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "token" not in first.headers["location"]
    page = ask("GET", "/", headers={"Cookie": "mrclab-token-8047=own"})
    assert page.status_code == 200
    assert "default-src 'self'" in page.headers["content-security-policy"]


@pytest.mark.parametrize(
    "path", ["/", "/about", "/state", "/events", "/metrics", "/replay.html", "/static/app.js"]
)
def test_without_a_token_nothing_is_shown(ask: Ask, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        answer = ask("GET", path, headers=headers)
        assert answer.status_code == 403
        assert "printed" in answer.json()["error"]


def test_another_name_for_this_server_is_refused(ask: Ask) -> None:
    assert ask("GET", "/", host="evil.example", headers=OWNER).status_code == 421


@pytest.mark.parametrize("path", ["/fault", "/restore", "/traffic", "/show", "/mapper"])
def test_watchers_and_foreign_pages_change_nothing(ask: Ask, asked: Asked, path: str) -> None:
    assert ask("POST", path, headers=WATCHER, json=CUT).status_code == 403
    foreign = ask("POST", path, headers={**OWNER, "Origin": "http://evil.example"}, json=CUT)
    assert foreign.status_code == 403
    assert "origin" in foreign.json()["error"]
    assert asked.made == []


def test_the_owner_makes_faults_and_undoes_them(ask: Ask, asked: Asked) -> None:
    own = {**OWNER, "Origin": f"http://{HOST}"}
    assert ask("POST", "/fault", headers=own, json=CUT).json() == {"card": 1, "where": CUT["where"]}
    assert ask("POST", "/restore", headers=own, json={"where": None}).status_code == 200
    assert ask("POST", "/traffic", headers=own, json={"transports": ["mrc"]}).status_code == 200
    assert ask("POST", "/show", headers=own, json={"flow": 0}).status_code == 200
    assert ask("POST", "/mapper", headers=own, json={"on": True}).status_code == 200
    assert asked.made == [
        Fault("blackhole", CUT["where"]),
        ("undo", None),
        TrafficPlan(transports=("mrc",)),
        ("show", 0),
        ("mapper", True),
    ]


def test_a_page_that_is_loaded_again_gets_what_its_charts_show() -> None:
    recording = Recording({})
    hub = Hub(recording)
    for t_ms in range(SHOWN_FRAMES + 7):
        hub.put({"t_ms": t_ms, "shown": 0})
    session: Any = Asked()
    app = application(session, hub, recording, Access("own", "watch", frozenset({"127.0.0.1"})))

    async def story() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
            return await client.get("/recent", headers=WATCHER)

    frames = asyncio.run(story()).json()["frames"]
    assert [frame["t_ms"] for frame in frames] == list(range(7, SHOWN_FRAMES + 7))
    assert [frame for frame in frames if "shown" in frame] == frames[:1]  # later frames have only the changes


@pytest.mark.parametrize("seconds", ["", "?seconds=60", "?seconds=-1", "?seconds=nan"])
def test_a_replay_without_any_frame_is_refused(ask: Ask, seconds: str) -> None:
    answer = ask("GET", f"/replay.html{seconds}", headers=WATCHER)
    assert answer.status_code == 400
    assert "nothing was seen" in answer.json()["error"]


def test_replays_for_many_viewers_are_made_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording({})
    hub = Hub(recording)
    hub.put({"t_ms": 1, "cards": []})
    app = application(Asked(), hub, recording, Access("own", "watch", frozenset({"127.0.0.1"})))  # type: ignore[arg-type]
    working: list[int] = []
    most = 0

    def make(*_: object) -> str:
        nonlocal most
        working.append(1)
        most = max(most, len(working))
        threading.Event().wait(0.1)
        working.pop()
        return "page"

    monkeypatch.setattr(server, "replay_page", make)

    async def story() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}", headers=WATCHER) as one:
            return await asyncio.gather(*(one.get("/replay.html") for _ in range(4)))

    assert [answer.status_code for answer in asyncio.run(story())] == [200] * 4
    assert most == 1


def test_the_paths_of_a_pair_of_hosts_are_told_and_recorded(ask: Ask, asked: Asked) -> None:
    found = ask("GET", "/evs/h0/h3", headers=WATCHER).json()["evs"]
    assert [row[0] for row in found] == [path.ev for path in asked.fabric.paths("h0", "h3")]
    assert ask("GET", "/about", headers=WATCHER).json()["evs"]["h0>h3"] == found
    for nowhere in ("/evs/h0/h0", "/evs/h0/h9", "/evs/p0-t0-0/h0"):
        assert ask("GET", nowhere, headers=WATCHER).status_code == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/fault", b"{"),
        ("/fault", b"[" * 50_000),
        ("/fault", b"\xff\xfe"),
        ("/fault", b"{}"),
        ("/fault", b'{"kind": "blackhole", "where": "nowhere"}'),
        ("/fault", b" " * (MOST_BODY_BYTES + 1)),
        ("/restore", b"[]"),
        ("/restore", b'{"where": 3}'),
        ("/traffic", b'{"rate_bps": -1}'),
        ("/show", b'{"flow": "first"}'),
        ("/mapper", b'{"on": 1}'),
    ],
)
def test_bad_requests_get_one_clear_line(ask: Ask, asked: Asked, path: str, body: bytes) -> None:
    answer = ask("POST", path, headers=OWNER, content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]
    assert "\n" not in answer.json()["error"]
    assert asked.made == []


@pytest.mark.parametrize(
    "path", ["/static/../server.py", "/static/%2e%2e/server.py", "/static/index.html", "/etc/passwd"]
)
def test_there_is_nothing_outside_the_page(ask: Ask, path: str) -> None:
    assert ask("GET", path, headers=OWNER).status_code == 404


@pytest.mark.parametrize("number", ["1" * 5000, "x", "-1"])
def test_a_card_with_no_such_number_is_not_found(ask: Ask, number: str) -> None:
    assert ask("GET", f"/packets/{number}/mrc", headers=OWNER).status_code == 404


def test_a_session_that_is_over_says_so(ask: Ask, asked: Asked) -> None:
    asked.gone = "the testbed is gone"
    answer = ask("POST", "/fault", headers=OWNER, json=CUT)
    assert (answer.status_code, answer.json()) == (410, {"error": "the testbed is gone"})
