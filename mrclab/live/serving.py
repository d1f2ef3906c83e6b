"""What the servers of both live pages have in common: who may ask, the page and its files, event lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mrclab.live.access import COOKIE, Access, Role, same_origin, token_of
from mrclab.live.recording import static

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'"
    ),
}


class Guard:
    """Refuses requests to other hosts, without a token, and changes from a foreign page."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass or answer it with a refusal."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        refusal = self._refusal(request)
        if refusal is not None:
            await refusal(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", ()),
                    *((k.lower().encode(), v.encode()) for k, v in HEADERS.items()),
                ]
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        if not self._access.host_is_ours(request.headers.get("host")):
            return refused(421, "this server is addressed by another name: use the printed address")
        token = token_of(request.query_params, request.cookies, request.headers.get("authorization"))
        role = self._access.role(token)
        if role is Role.NOBODY:
            return refused(403, "no or a wrong token: open the address that 'mrclab live' printed")
        request.scope["role"], request.scope["token"] = role, token
        if request.method not in ("GET", "HEAD"):
            if not same_origin(request.headers.get("origin"), request.headers.get("host")):
                return refused(403, "a page of another origin may change nothing here")
            if role is not Role.OWNER:
                return refused(403, "this address is for watching: only the owner's may change something")
        return None


def refused(status: int, error: str) -> JSONResponse:
    """Return a refusal: its text under ``error``."""
    return JSONResponse({"error": error}, status_code=status)


def page_routes(html: Callable[[], str], assets: Mapping[str, str]) -> list[Route]:
    """Return the routes of a page and of its files, whose media types ``assets`` has by name.

    Whoever comes with the token in the address gets it as a cookie instead, so that the address can be shown.
    """

    async def page(request: Request) -> Response:
        if "token" in request.query_params:
            answer: Response = RedirectResponse("./", status_code=303)
            answer.set_cookie(COOKIE, request.scope["token"], httponly=True, samesite="strict")
            return answer
        return HTMLResponse(html())

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in assets:
            return refused(404, f"there is no '{name}' here")
        return Response(static(name), media_type=assets[name])

    return [Route("/", page), Route("/static/{name}", asset)]


def event_line(data: Mapping[str, Any]) -> str:
    """Return a server-sent event with ``data`` as JSON."""
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n"
