"""More than a link can carry, on real interfaces: who is trimmed, who is marked, and who does not wait."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from finsy.proto import p4i

from tests.switches.merge import CONTROL, OVERHEAD, TRIMMABLE, Merge
from tests.switches.switch_kit import JSON, Namespace, mrc_frame, receive, sid
from topologies import LinkProfile

pytestmark = pytest.mark.root
RATE, MTU = 20_000_000, 4300
WHOLE = OVERHEAD + 4096
FRAME_S = WHOLE * 8 / RATE
CATCH_UP_S = 0.004


@pytest.fixture(params=[False, True], ids=["fabric", "last hop"])
def merge(
    request: pytest.FixtureRequest, namespace: Namespace, tmp_path: Path, mrc_info: p4i.P4Info
) -> Iterator[Merge]:
    profile = LinkProfile(RATE, 0, MTU)
    with Merge(namespace, tmp_path, mrc_info, JSON.read_bytes(), profile, last_hop=request.param) as made:
        yield made


def codepoint(frame: bytes) -> int:
    return frame[14] << 2 & 0x3C | frame[15] >> 6


@pytest.mark.parametrize("overload", [2, 10])
def test_overload_trims_and_marks_and_drops_nothing(merge: Merge, overload: int) -> None:
    frame, sent = mrc_frame(sid(1, 3), 4096, dscp=TRIMMABLE, ecn=2), 150 * overload
    start = due = time.monotonic()
    missed = 0.0
    for _, port in zip(range(sent), itertools.cycle((1, 2)), strict=False):
        while (now := time.monotonic()) < due:
            pass
        # A sender that was kept from its work catches up a little: all at once would be another overload.
        late = max(now - CATCH_UP_S - due, 0)
        missed, due = missed + late, due + late + FRAME_S / overload
        merge.h[port].send(frame)
    lasted = time.monotonic() - start
    got = receive(merge.h[3], sent, 5)
    trimmed = [f for f in got if len(f) == 134]
    whole = [f for f in got if len(f) == WHOLE]
    drops = [merge.count("drops", reason) for reason in (7, 8)]
    # Not one is missing: what came in left, whole or cut.
    assert (len(got), drops) == (sent, [0, 0])
    assert len(trimmed) + len(whole) == sent
    assert merge.count("trim.trimmed", 3) == len(trimmed)
    assert {codepoint(f) for f in trimmed} == {16 if merge.setting.mark is None else 12}
    # The link was never idle: whole frames took what the trimmed ones left, and as much again as may queue.
    carried = (len(whole) * WHOLE + len(trimmed) * 134) * 8
    queued = (merge.setting.trim_from / 1024e6 + 2 * FRAME_S) * RATE
    assert 0.9 * (lasted - missed) * RATE < carried < lasted * RATE + queued
    marked = [f[15] >> 4 & 3 == 3 for f in whole]
    if merge.setting.mark is None:
        assert not any(marked)
    else:
        assert not any(marked[:3])  # they found less than a fifth of 16 frames before them
        full = marked[math.ceil(16 * overload / (overload - 1)) + 2 :]
        # Trimming holds the queue above the upper threshold, unless the senders paused.
        assert sum(full) > (0.9 - 2 * missed / lasted) * len(full)
        assert merge.count("ecn_mark.marked", 3) == sum(f[15] >> 4 & 3 == 3 for f in got)


def test_control_overtakes_all_data_that_waits(merge: Merge) -> None:
    data = mrc_frame(sid(1, 3), 4096, dscp=0)
    control = mrc_frame(sid(1, 3), 64, dscp=CONTROL)
    for _ in range(30):  # they take 50 ms
        merge.h[1].send(data)
    merge.h[2].send(control)
    got = receive(merge.h[3], 31, 5)
    place = [codepoint(f) for f in got].index(CONTROL)
    assert place < 15
    assert len(got) == 31 - merge.count("drops", 7)
