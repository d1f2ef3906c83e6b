"""The end-to-end tests of forwarding on BMv2, and a comparison of the two targets."""

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from mrclab.testbed.names import Names
from mrclab.topologies import load_fabric
from tests.end_to_end.test_forwarding import ears as ears
from tests.end_to_end.test_forwarding import (
    test_a_cut_link_drops_and_nothing_is_rerouted,
    test_the_segment_list_shifts_hop_by_hop,
    test_what_cannot_be_forwarded_is_counted_by_reason,
)
from tests.support.command import Mrclab, Up
from tests.support.forwarding import DST, PATIENCE_S, SRC, arrivals, frame, send

__all__ = [
    "test_a_cut_link_drops_and_nothing_is_rerouted",
    "test_the_segment_list_shifts_hop_by_hop",
    "test_what_cannot_be_forwarded_is_counted_by_reason",
]

SIZES = (64, 1000, 4096)


@pytest.fixture
def both(tiny: Up) -> Iterator[tuple[Up, Up]]:
    """Bring up `tiny` on BMv2 and on ebpf at the same time."""
    other = Mrclab(Names.of_prefix(f"t{os.urandom(3).hex()}"))
    try:
        other.ok("up", "--topology", "tiny", "--target", "ebpf")
        yield tiny, Up(other, load_fabric("tiny"))
        other.ok("down")
    finally:
        other("clean")


def counted(up: Up) -> dict[str, Any]:
    return {name: switch["counters"] for name, switch in up.mrclab.status()["switches"].items()}


def grown(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the growth of each counter."""

    def gain(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
        none = {"packets": 0, "bytes": 0}
        return {
            k: {u: v[u] - old.get(k, none)[u] for u in v} for k, v in new.items() if v != old.get(k, none)
        }

    return {
        name: {kind: gain(flat(before[name][kind]), flat(after[name][kind])) for kind in after[name]}
        for name in after
    }


def flat(counts: dict[str, Any]) -> dict[str, Any]:
    """Return the counts in one flat dictionary: nested keys (port, then reason) become one key."""
    found: dict[str, Any] = {}
    for key, value in counts.items():
        nested = all(isinstance(inner, dict) for inner in value.values())
        found |= {f"{key} {reason}": count for reason, count in value.items()} if nested else {key: value}
    return found


def test_both_targets_count_the_same_frames_alike(both: tuple[Up, Up]) -> None:
    gains = []
    for up in both:
        before = counted(up)
        paths = up.fabric.paths(SRC, DST)
        for path in paths:
            for size in SIZES:
                send(up, path, frame(up, path, b"z" * size))
        send(up, paths[0], frame(up, paths[0]).replace(paths[0].outer_dst.packed, bytes(16)))
        last = {up.fabric.link(path.nodes[-2], DST).name: path for path in paths}
        assert last
        deadline = time.monotonic() + PATIENCE_S
        while True:
            gain = grown(before, counted(up))
            delivered = sum(
                gain[path.nodes[-2]]["tx"]
                .get(str(up.fabric.switch(path.nodes[-2]).port_to(DST).number), {})
                .get("packets", 0)
                for path in last.values()
            )
            refused = gain[paths[0].nodes[1]]["drops"]
            if delivered == len(paths) * len(SIZES) and refused:
                break
            assert time.monotonic() < deadline, gain
        gains.append(gain)
    assert gains[0] == gains[1]
    assert arrivals(both[0], both[0].fabric.paths(SRC, DST)[0])
