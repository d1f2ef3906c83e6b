"""The arithmetic of the link meter: the bins of bytes have equal lengths, even if counters are read late."""

import pytest

from mrclab.experiments.run.link_bytes import PERIOD_NS, LinkMeter
from mrclab.experiments.spec.placement import metered
from mrclab.linux.errors import InputError
from mrclab.topologies import load_fabric

LINK = "p0-t0-0:p0-t1-1"


def test_readings_become_bins() -> None:
    fabric = load_fabric("tiny")
    ends = fabric.link(*LINK.split(":"))
    now = 0

    def read() -> dict[str, int]:
        # Each ms, 30 bytes go down and 10 up: together 4 kB in 100 ms.
        ms = now // 10**6
        return {ends.a.ifname: 10 * ms, ends.b.ifname: 30 * ms, "other": 10**9}

    meter = LinkMeter(fabric, [LINK], read, begin_ns=10**9)
    meter.act(lambda: now)
    assert meter.next_ns == 10**9
    for now in (10**9, 1_130_000_000, 1_200_000_000, 1_300_000_000):  # the second reading is 30 ms late
        meter.act(lambda: now)  # noqa: B023 - called at once
    assert meter.next_ns == 1_400_000_000
    found = meter.series(measure_ns=10**9)
    assert found == {"start_us": 0, "bin_us": PERIOD_NS / 1e3, "bytes": {LINK: [4000, 4000, 4000]}}


def test_nothing_metered_is_never_due() -> None:
    meter = LinkMeter(load_fabric("tiny"), [], dict, begin_ns=0)
    assert meter.next_ns is None
    assert meter.series(0)["bytes"] == {}


def test_links_are_chosen_by_pattern() -> None:
    fabric = load_fabric("tiny")
    assert metered(fabric, "") == ()
    assert metered(fabric, "p?-t0-0:p?-t1-1") == (LINK, "p1-t0-0:p1-t1-1")
    with pytest.raises(InputError, match=r"measure\.links: 'h0:.' matches none of tiny, as p0-t0-0:p0-t1-0"):
        metered(fabric, "h0:*")
