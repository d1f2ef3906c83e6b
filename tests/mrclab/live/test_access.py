"""Who may see the live page, and who may make faults."""

import pytest

from mrclab.live.serving import Access, Role, cookie_name, same_origin, token_of

ACCESS = Access("own", "watch", frozenset({"127.0.0.1", "localhost", "::1"}))


@pytest.mark.parametrize(
    ("token", "role"),
    [
        ("own", Role.OWNER),
        ("watch", Role.WATCHER),
        ("", Role.NOBODY),
        (None, Role.NOBODY),
        ("owné", Role.NOBODY),
    ],
)
def test_a_token_says_what_its_bearer_may_do(token: str | None, role: Role) -> None:
    assert ACCESS.role(token) is role


@pytest.mark.parametrize("host", ["127.0.0.1:8047", "localhost", "[::1]:8047", "LOCALHOST:1"])
def test_names_of_loopback_are_ours(host: str) -> None:
    assert ACCESS.host_is_ours(host)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "10.0.0.1", "x@127.0.0.1", "[", "[127.0.0.1]", None, ""],
)
def test_a_page_that_rebinds_its_name_to_loopback_is_refused(host: str | None) -> None:
    assert not ACCESS.host_is_ours(host)
    assert Access("o", "w", None).host_is_ours(host)


def test_the_token_comes_by_address_header_or_cookie_in_this_order() -> None:
    cookies = {cookie_name(None): "c"}
    assert token_of({"token": "q"}, cookies, "Bearer h") == "q"
    assert token_of({}, cookies, "Bearer h") == "h"
    assert token_of({}, cookies, None) == "c"
    assert token_of({}, {}, "Basic x") is None
    assert token_of({}, {cookie_name(8047): "c"}, None, 8048) is None  # the cookie of another page
    assert token_of({}, {cookie_name(8047): "c"}, None, 8047) == "c"


@pytest.mark.parametrize(
    ("origin", "ours"),
    [
        (None, True),
        ("http://127.0.0.1:8047", True),
        ("http://127.0.0.1:8048", False),
        ("http://evil.example", False),
        ("null", False),
        ("http://[", False),
    ],
)
def test_only_our_own_page_changes_something(origin: str | None, ours: bool) -> None:
    assert same_origin(origin, "127.0.0.1:8047") is ours
