"""Overload of a link on real interfaces: which frames are trimmed or marked, and which need not wait."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from finsy.proto import p4i

from mrclab.p4src.contract import (
    CONTROL_DSCP,
    FRAME_OVERHEAD_BYTES,
    RETX_DSCP,
    SWITCH_MAP,
    TRIMMABLE_DSCP,
    TRIMMED_BYTES,
    TRIMMED_DSCP,
)
from mrclab.topologies import LinkProfile
from tests.support.merge import Merge, PortModel, marks_between
from tests.support.switch_kit import JSON, Namespace, mrc_frame, receive, sid

pytestmark = pytest.mark.root
RATE, MTU = 20_000_000, 4300
WHOLE = FRAME_OVERHEAD_BYTES + 4096
FRAME_NS = WHOLE * 8e9 / RATE
CATCH_UP_FRAMES = 60


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
    frame, sent = mrc_frame(sid(1, 3), 4096, dscp=TRIMMABLE_DSCP, ecn=2), 150 * overload
    model, trims, certain, impossible = PortModel(merge.setting), 0, 0, 0
    due: float = time.monotonic_ns()
    for number in range(sent):
        while (now := time.monotonic_ns()) < due:
            pass
        # A delayed sender catches up, but not so fast that trimmed frames alone would take half of the link.
        due = max(due, now - CATCH_UP_FRAMES * FRAME_NS / overload) + FRAME_NS / overload
        merge.h[1 + number % 2].send(frame)
        wait, trimmed = model.send((now + time.monotonic_ns()) / 2, len(frame))
        trims += trimmed
        certain += not trimmed and model.mark_chance(wait - FRAME_NS) == 1
        impossible += not trimmed and model.mark_chance(wait + FRAME_NS) == 0
    got = receive(merge.h[3], sent, 5)
    cut = [f for f in got if len(f) == TRIMMED_BYTES]
    whole = [f for f in got if len(f) == WHOLE]
    # No frame is missing: each frame that came in also left, whole or trimmed.
    assert (len(got), merge.count("drops", 7), merge.count("drops", 8)) == (sent, 0, 0)
    assert len(cut) + len(whole) == sent
    assert merge.count("trim.trimmed", 3) == len(cut)
    assert {codepoint(f) for f in cut} == {16 if merge.setting.mark is None else 12}
    # Interruptions of the sender make the model's times inexact.
    assert 0.9 * trims - 5 < len(cut) < 1.1 * trims + 5
    marked = sum(f[15] >> 4 & 3 == 3 for f in whole)
    assert merge.count("ecn_mark.marked", 3) == sum(f[15] >> 4 & 3 == 3 for f in got)
    assert 0.9 * certain <= marked <= len(whole) - 0.9 * impossible


@pytest.mark.parametrize("merge", [False], indirect=True, ids=["fabric"])
def test_marks_between_the_thresholds_come_as_often_as_configured(merge: Merge) -> None:
    result = marks_between(merge, 600, random.Random(1))
    # The tolerance is a tenth of the expected marks, plus four standard deviations of a random draw.
    slack = 0.1 * result["expected"] + 4 * result["deviation"]
    assert abs(result["marked"] - result["expected"]) < slack, result


def test_control_goes_ahead_of_trimmed_frames_and_these_of_data(merge: Merge) -> None:
    for dscp, payload in ((0, 4096), (TRIMMED_DSCP, 0), (CONTROL_DSCP, 64)):
        frame = mrc_frame(sid(1, 3), payload, dscp=dscp)
        for _ in range(20):  # the data alone takes 34 ms
            merge.h[1].send(frame)
    came = [codepoint(f) for f in receive(merge.h[3], 60, 5)]
    assert len(came) == 60
    last = {dscp: max(i for i, c in enumerate(came) if c == dscp) for dscp in (0, TRIMMED_DSCP, CONTROL_DSCP)}
    assert last[CONTROL_DSCP] < last[TRIMMED_DSCP] < last[0]


def test_control_overtakes_all_data_that_waits(merge: Merge) -> None:
    data = mrc_frame(sid(1, 3), 4096, dscp=0)
    control = mrc_frame(sid(1, 3), 64, dscp=CONTROL_DSCP)
    for _ in range(30):  # these frames take 50 ms
        merge.h[1].send(data)
    merge.h[2].send(control)
    got = receive(merge.h[3], 31, 5)
    place = [codepoint(f) for f in got].index(CONTROL_DSCP)
    assert place < 15
    assert len(got) == 31 - merge.count("drops", 7)


@pytest.mark.parametrize("higher", [False, True], ids=["with data", "higher class"])
def test_the_switch_map_says_whether_retransmissions_overtake_data(
    higher: bool, namespace: Namespace, tmp_path: Path, mrc_info: p4i.P4Info
) -> None:
    classes = {**SWITCH_MAP, RETX_DSCP: "high"} if higher else SWITCH_MAP
    profile = LinkProfile(RATE, 0, MTU)
    data, again = (mrc_frame(sid(1, 3), 4096, dscp=dscp) for dscp in (TRIMMABLE_DSCP, RETX_DSCP))
    with Merge(namespace, tmp_path, mrc_info, JSON.read_bytes(), profile, classes=classes) as merge:
        for _ in range(50):
            begun_ns = time.monotonic_ns()
            for frame in (*[data] * 10, again):  # these frames take 17 ms
                merge.h[1].send(frame)
            took_ns = time.monotonic_ns() - begun_ns
            came = [codepoint(f) for f in receive(merge.h[3], 11, 5)]
            assert len(came) == 11
            if took_ns < 4 * FRAME_NS:
                break  # the frames were sent fast enough to fill the queue
        else:
            pytest.skip("this machine is too busy to fill a queue")
    # Some data always leaves first: the link has begun to send it, or it has already passed the token bucket.
    assert came.index(RETX_DSCP) < 8 if higher else came[-1] == RETX_DSCP
