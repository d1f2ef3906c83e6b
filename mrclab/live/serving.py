"""The common parts of the live page's server and the training page's server: access, files, event streams.

A server listens on loopback, which every local program and every web page in a local browser can reach. So
each request needs a token. The printed address contains the token. The ``Host`` header of a request must name
this server (against DNS rebinding). A request that changes something needs the owner's token, and is refused
if its ``Origin`` header names another server's page.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mrclab.live.recording import static


def cookie_name(port: int | None) -> str:
    """Return the name of the cookie with a page's token. It has the port, because all ports share cookies."""
    return f"mrclab-token-{port or 0}"


class Role(IntEnum):
    """The rights of a visitor."""

    NOBODY = 0
    WATCHER = 1
    OWNER = 2


@dataclass(frozen=True, slots=True)
class Access:
    """The two tokens of a session, and the host names that requests may use for the server.

    If ``hosts`` is None, every name is accepted: the owner chose to serve other machines (``--listen``).
    """

    owner: str
    watcher: str
    hosts: frozenset[str] | None

    def role(self, token: str | None) -> Role:
        """Return the rights of a visitor with this token."""
        if token is None:
            return Role.NOBODY
        given = token.encode()
        if hmac.compare_digest(given, self.owner.encode()):
            return Role.OWNER
        if hmac.compare_digest(given, self.watcher.encode()):
            return Role.WATCHER
        return Role.NOBODY

    def host_is_ours(self, host: str | None) -> bool:
        """Return True if a ``Host`` header names this server."""
        if self.hosts is None:
            return True
        return host is not None and "@" not in host and _host_name(host) in self.hosts


def _host_name(host: str) -> str | None:
    """Return the name in a ``Host`` header without its port, or None if the header is not valid."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def token_of(
    query: Mapping[str, str], cookies: Mapping[str, str], authorization: str | None, port: int | None = None
) -> str | None:
    """Return a request's token: from the query, the Authorization header, or the port's cookie."""
    if query.get("token"):
        return query["token"]
    if authorization is not None and authorization.lower().startswith("bearer "):
        return authorization[7:].strip()
    return cookies.get(cookie_name(port))


def same_origin(origin: str | None, host: str | None) -> bool:
    """Return True if a request is from a page of this server, or from a program that sends no ``Origin``."""
    if origin is None:
        return True
    try:
        return host is not None and urlsplit(origin).netloc == host
    except ValueError:
        return False


LOGGER = logging.getLogger(__name__)
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'"
    ),
}


UNREAD_S = 30.0
"""The longest time, s, that a client may leave its stream unread. Then the client's request ends."""


class _UnreadError(Exception):
    """Raised if a client does not read its stream."""


class Guard:
    """Refuse a request with a wrong ``Host`` or without a token.

    Also refuse a request to change something if another site's page sent the request. If a client does not
    read its stream, end the request.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request to the application, or answer it with a refusal."""
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
            try:
                await asyncio.wait_for(send(message), UNREAD_S)
            except TimeoutError:
                raise _UnreadError from None

        try:
            await self._app(scope, receive, send_with_headers)
        except* _UnreadError:
            LOGGER.info("a page reads nothing: its stream ends")

    def _refusal(self, request: Request) -> Response | None:
        if not self._access.host_is_ours(request.headers.get("host")):
            return refused(421, "this server is addressed by another name: use the printed address")
        token = token_of(
            request.query_params, request.cookies, request.headers.get("authorization"), _port(request)
        )
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


def _port(request: Request) -> int | None:
    server: tuple[str, int | None] | None = request.scope.get("server")
    return server[1] if server else None


def refused(status: int, error: str) -> JSONResponse:
    """Return a refusal, with the text ``error`` in a JSON object."""
    return JSONResponse({"error": error}, status_code=status)


def page_routes(html: Callable[[], str], assets: Mapping[str, str]) -> list[Route]:
    """Return the routes of a page and of its files; ``assets`` has the media type of each file.

    If the address of a request has a token, the server puts the token into a cookie. It then redirects the
    browser to the address without the token.
    """

    async def page(request: Request) -> Response:
        if "token" in request.query_params:
            answer: Response = RedirectResponse("./", status_code=303)
            answer.set_cookie(
                cookie_name(_port(request)), request.scope["token"], httponly=True, samesite="strict"
            )
            return answer
        return HTMLResponse(html())

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in assets:
            return refused(404, f"there is no '{name}' here")
        return Response(static(name), media_type=assets[name])

    return [Route("/", page), Route("/static/{name}", asset)]


class EventStream(StreamingResponse):
    """A stream of server-sent events that closes its source when the request ends, also after an error."""

    def __init__(self, lines: AsyncGenerator[str, None]) -> None:
        super().__init__(lines, media_type="text/event-stream")
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._lines.aclose()


def event_line(data: Mapping[str, Any]) -> str:
    """Return a server-sent event with ``data`` as JSON."""
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n"
