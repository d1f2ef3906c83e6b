"""State of an MRC endpoint that only tests set or read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from mrclab.hosts.mrc import Endpoint
from mrclab.hosts.mrc.wire import NackReason


def set_refusal(end: Endpoint, qpn: int, reason: NackReason | None) -> None:
    """Refuse new packets with this reason from now on. If the reason is None, accept new packets again."""
    end.qps[qpn].responder.refusal = reason


def set_receiver_penalty(end: Endpoint, qpn: int, penalty: int, *, restore: bool = False) -> None:
    """Ask the sender to narrow its window by penalty/128 per RTT, or to undo this penalty [SPEC CC_STATE]."""
    end.qps[qpn].responder.set_penalty(penalty, restore=restore)


def active_per_plane(end: Endpoint, qpn: int) -> Mapping[int, int]:
    """Return the number of EVs in the rotation for each plane."""
    return {plane.port: len(plane.active) for plane in end.qps[qpn].evs.planes}


@contextmanager
def allowed() -> Iterator[None]:
    """Turn an error of the core into a failed assertion, because the test expects no error."""
    try:
        yield
    except ValueError as error:
        raise AssertionError(f"{type(error).__name__}: {error}") from error
