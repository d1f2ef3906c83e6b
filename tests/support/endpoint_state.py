"""State of an MRC endpoint that tests set or read, and that no user needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from mrclab.hosts.mrc import Endpoint
from mrclab.hosts.mrc.wire import NackReason


def set_refusal(end: Endpoint, qpn: int, reason: NackReason | None) -> None:
    """Refuse new packets with this reason from now on, as a receiver short of it does; None ends that."""
    end.qps[qpn].responder.refusal = reason


def set_receiver_penalty(end: Endpoint, qpn: int, penalty: int, *, restore: bool = False) -> None:
    """Ask the sender to narrow its window by penalty/128 per RTT, or to undo that [SPEC CC_STATE]."""
    end.qps[qpn].responder.set_penalty(penalty, restore=restore)


def active_per_plane(end: Endpoint, qpn: int) -> Mapping[int, int]:
    """Return how many EVs each plane has in the rotation."""
    return {plane.port: len(plane.active) for plane in end.qps[qpn].evs.planes}


@contextmanager
def allowed() -> Iterator[None]:
    """Make an error of the core a failed assertion: the test says that there is none."""
    try:
        yield
    except ValueError as error:
        raise AssertionError(f"{type(error).__name__}: {error}") from error
