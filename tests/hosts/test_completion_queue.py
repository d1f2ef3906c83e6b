"""The waiting times of a completion queue, without a network."""

from collections.abc import Collection
from typing import cast

import pytest

from mrclab.hosts.mrc.events import Event
from mrclab.hosts.nic.device import Device
from mrclab.hosts.verbs import Context
from mrclab.topologies import load_fabric


class QuietDevice:
    """An idle device with a simulated clock. Each call of `turn` takes half of the remaining time."""

    def __init__(self) -> None:
        self.now_ns = 1_000

    def now(self) -> int:
        return self.now_ns

    def turn(self, until_ns: int | None, others: Collection[int] = ()) -> Collection[int]:
        assert until_ns is not None
        self.now_ns += max(0, -(-(until_ns - self.now_ns) // 2))
        return ()

    def events(self) -> list[Event]:
        return []


@pytest.mark.parametrize(("timeout_s", "waited_ns"), [(0.0, 0), (0.1, 100_000_000)])
def test_poll_waits_as_long_as_it_is_asked_to(timeout_s: float, waited_ns: int) -> None:
    device = QuietDevice()
    context = Context(load_fabric("tiny"), "h0", cast(Device, device))
    assert context.create_cq().poll(timeout_s=timeout_s) == []
    assert device.now_ns == 1_000 + waited_ns
