"""Who may see the page and who may break things: tokens, hosts and origins. Pure.

The page listens on loopback, but every program and every web page that a browser of this machine shows can
reach loopback. So each request needs a token, which the printed address has, and a ``Host`` that is ours
(against DNS rebinding); what changes something needs the token of the owner, and no foreign ``Origin``.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from urllib.parse import urlsplit


def cookie_name(port: int | None) -> str:
    """Return the name of the cookie that holds a page's token: cookies do not distinguish ports."""
    return f"mrclab-token-{port or 0}"


class Role(IntEnum):
    """What a visitor may do."""

    NOBODY = 0
    WATCHER = 1
    OWNER = 2


@dataclass(frozen=True, slots=True)
class Access:
    """The two tokens of a session, and the names under which the server may be addressed.

    With ``hosts`` None every name is taken: the owner asked for other machines (``--listen``).
    """

    owner: str
    watcher: str
    hosts: frozenset[str] | None

    def role(self, token: str | None) -> Role:
        """Return the rights of the bearer of a token."""
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
        return host is not None and "@" not in host and urlsplit(f"//{host}").hostname in self.hosts


def token_of(
    query: Mapping[str, str], cookies: Mapping[str, str], authorization: str | None, port: int | None = None
) -> str | None:
    """Return the token that a request brings: in its address, a cookie of the port, or a header."""
    if query.get("token"):
        return query["token"]
    if authorization is not None and authorization.lower().startswith("bearer "):
        return authorization[7:].strip()
    return cookies.get(cookie_name(port))


def same_origin(origin: str | None, host: str | None) -> bool:
    """Return True if a request that changes something comes from our own page, or from no page at all."""
    if origin is None:
        return True
    return host is not None and urlsplit(origin).netloc == host
