"""The server of `mrclab live --target sim`: requests to it, and the command as a user starts it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from mrclab.live.recording import Recording
from mrclab.live.server import Hub, application
from mrclab.live.serving import Access
from mrclab.play.command import Paced
from mrclab.play.scene import Scene, scene_of
from mrclab.play.session import Play
from mrclab.topologies import load_fabric
from tests.support.other_systems import SYSTEMS, environment

OWNER, WATCHER = {"Authorization": "Bearer own"}, {"Authorization": "Bearer watch"}
LINK = "p0-t0-0:p0-t1-0"


@pytest.fixture
def served() -> Iterator[tuple[Starlette, Paced]]:
    fabric = load_fabric("tiny")
    play = Play(Scene(fabric="tiny"), fabric)
    recording = Recording(play.about("1"))
    hub = Hub(recording)
    session = Paced(play, hub.put)
    app = application(
        session,
        hub,
        recording,
        Access("own", "watch", frozenset({"127.0.0.1"})),
        read_traffic=lambda data: scene_of(data, play.scene),
        wishes={"pace": session.set_pace},
    )
    worker = threading.Thread(target=session.run)
    worker.start()
    yield app, session
    session.stop()
    worker.join()


def ask(
    app: Starlette, method: str, path: str, headers: dict[str, str] = OWNER, **options: Any
) -> httpx.Response:
    async def story() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8047") as client:
            return await client.request(method, path, headers=headers, **options)

    return asyncio.run(story())


def test_the_page_shows_cuts_and_restores(served: tuple[Starlette, Paced]) -> None:
    app, _ = served
    about = ask(app, "GET", "/about").json()
    assert about["target"] == "sim"
    assert about["sim"]["pace"] == 20_000
    assert about["plan"]["transports"] == ["mrc", "rocev2"]
    assert ask(app, "POST", "/fault", json={"kind": "blackhole", "where": LINK}).json() == {
        "card": 1,
        "where": LINK,
    }
    assert LINK in session_frame(app)["faults"]
    assert ask(app, "POST", "/restore", json={"where": None}).json() == {"restored": [LINK]}
    assert ask(app, "GET", "/evs/h0/h3").json()["evs"]
    assert ask(app, "GET", "/counters/p0-t1-0").json()["counters"]["rx"]
    assert "mrclab_delivered_bits_per_second" in ask(app, "GET", "/metrics").text


def session_frame(app: Starlette) -> dict[str, Any]:
    """Let virtual time run, and return the first state of the page that has a fault."""
    ask(app, "POST", "/pace", json={"paused": False})
    found = None
    while found is None or not found["faults"]:
        found = ask(app, "GET", "/state").json()["frame"]
    return dict(found)


def test_the_owner_sets_pace_and_traffic_and_a_watcher_nothing(served: tuple[Starlette, Paced]) -> None:
    app, session = served
    assert ask(app, "POST", "/pace", json={"ns_per_s": 100_000, "paused": True}).json() == {
        "pace": 100_000,
        "paused": True,
    }
    assert ask(app, "POST", "/pace", json={"ns_per_s": 1}).status_code == 400
    assert ask(app, "POST", "/pace", json={"paused": 1}).status_code == 400
    assert ask(app, "POST", "/pace", WATCHER, json={"ns_per_s": 100_000}).status_code == 403
    assert ask(app, "POST", "/traffic", json={"transports": ["reps"]}).status_code == 200
    assert session.plan_document()["transports"] == ["reps"]
    assert ask(app, "POST", "/traffic", json={"transports": ["tcp"]}).status_code == 400
    assert ask(app, "POST", "/mapper", json={"on": True}).json()["error"] == (
        "Clustermapper needs a live target"
    )


@pytest.mark.parametrize("system", SYSTEMS)
def test_it_starts_on_any_system_and_ends(system: str, tmp_path: Path) -> None:
    words = ["live", "--target", "sim", "--topology", "tiny", "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "mrclab", *words],
        env=environment(system, tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said = []
    while not said or not said[-1].startswith("open"):
        said.append(process.stdout.readline())
        assert said[-1], said
    address = said[-1].split()[1]
    assert httpx.get(address, follow_redirects=True).status_code == 200
    process.terminate()
    rest = process.communicate()[0]
    assert "simulated, in slow motion" in said[0]
    assert "Traceback" not in rest


def test_a_program_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    from mrclab.cli import main

    assert main(["live", "--target", "sim", "--program", "x"]) == 2
    assert "--program is for a live target" in capsys.readouterr().err
