"""Requests of viewers and page updates share a session's thread. Neither can keep the other waiting."""

from __future__ import annotations

import time

import pytest

from mrclab.live.page_requests import PageRequests
from mrclab.live.session import Session
from mrclab.play.command import Paced

LIMIT_S = 60.0


@pytest.mark.parametrize("kind", [Session, Paced])
def test_viewers_who_ask_without_end_do_not_stop_the_page_updates(kind: type[Session | Paced]) -> None:
    session = object.__new__(kind)  # only its requests are used
    session._requests = requests = PageRequests(0.1)
    asked = 0

    def ask_again() -> None:
        nonlocal asked
        asked += 1
        if time.monotonic() < begun + LIMIT_S:
            session.do(ask_again)

    begun = time.monotonic()
    ask_again()
    requests.answer_until(begun)
    assert time.monotonic() < begun + LIMIT_S
    assert asked > 1
