"""The server of a training's page: it shows a directory of results, and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mrclab.live.access import Access
from mrclab.live.recording import changed, static
from mrclab.live.serving import EventStream, Guard, event_line, page_routes
from mrclab.live.training.follow import Follower

SCRIPTS = ("format.js", "training.js")
ASSETS = dict.fromkeys(SCRIPTS, "text/javascript") | dict.fromkeys(("live.css", "training.css"), "text/css")
LOOK_EVERY_S = 0.5


def application(follower: Follower, access: Access) -> Starlette:
    """Return the web application that shows what ``follower`` reads."""

    async def state(_request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(follower.frame))

    async def events(_request: Request) -> Response:
        async def lines() -> AsyncGenerator[str, None]:
            before: Mapping[str, Any] = {}
            while True:
                frame = {"t_ms": 0, **await asyncio.to_thread(follower.frame)}
                told = changed(frame, before)
                gone = [name for name in before if name not in frame]
                before = frame
                if len(told) > 1 or gone:
                    yield event_line({**told, **dict.fromkeys(gone)})
                else:
                    yield ": nothing new\n\n"
                await asyncio.sleep(LOOK_EVERY_S)

        return EventStream(lines())

    return Starlette(
        routes=[
            *page_routes(lambda: static("training.html"), ASSETS),
            Route("/state", state),
            Route("/events", events),
        ],
        middleware=[Middleware(Guard, access=access)],
    )
