"""The server of a training's page: it shows a directory of results, and changes nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from mrclab.live.access import COOKIE, Access
from mrclab.live.recording import changed, static
from mrclab.live.server import Guard, refused
from mrclab.live.training.follow import Follower

SCRIPTS = ("format.js", "training.js")
ASSETS = dict.fromkeys(SCRIPTS, "text/javascript") | dict.fromkeys(("live.css", "training.css"), "text/css")
LOOK_EVERY_S = 0.5


def application(follower: Follower, access: Access) -> Starlette:
    """Return the web application that shows what ``follower`` reads."""

    async def page(request: Request) -> Response:
        if "token" in request.query_params:
            answer: Response = RedirectResponse("./", status_code=303)
            answer.set_cookie(COOKIE, request.scope["token"], httponly=True, samesite="strict")
            return answer
        return HTMLResponse(static("training.html"))

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in ASSETS:
            return refused(404, f"there is no '{name}' here")
        return Response(static(name), media_type=ASSETS[name])

    async def state(_request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(follower.frame))

    async def events(_request: Request) -> Response:
        async def lines() -> AsyncIterator[str]:
            before: Mapping[str, Any] = {}
            while True:
                frame = {"t_ms": 0, **await asyncio.to_thread(follower.frame)}
                told = changed(frame, before)
                gone = [name for name in before if name not in frame]
                before = frame
                if len(told) > 1 or gone:
                    data = {**told, **dict.fromkeys(gone)}
                    yield f"data: {json.dumps(data, separators=(',', ':'))}\n\n"
                else:
                    yield ": nothing new\n\n"
                await asyncio.sleep(LOOK_EVERY_S)

        return StreamingResponse(lines(), media_type="text/event-stream")

    return Starlette(
        routes=[
            Route("/", page),
            Route("/static/{name}", asset),
            Route("/state", state),
            Route("/events", events),
        ],
        middleware=[Middleware(Guard, access=access)],
    )
