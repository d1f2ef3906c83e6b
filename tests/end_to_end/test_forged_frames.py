"""Forged frames must not end an agent or block a stream. `benchmarks/forged_frames.py` sends more frames."""

import random

import pytest

from benchmarks.forged_frames import measure
from benchmarks.kit.forgeries import CLASSES, forged
from tests.support.command import Up
from tests.support.mrc_sim import Sim

FRAMES = 3000


def test_each_class_makes_frames_that_differ_from_those_seen() -> None:
    sim = Sim(seed=1, keep_frames=True)
    region = sim.ends[1].register_memory(bytearray(20_000))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(20_000), region.address, region.rkey)
    sim.run(1_000_000)
    seen = [sighting.frame for sighting in sim.sightings]
    for name in CLASSES:
        made = forged(name, seen, 50, random.Random(1))
        assert len(made) == 50
        assert all(0 < len(frame) <= 4300 for frame in made), name
        assert len(set(made) - set(seen)) > 5, name


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_agents_outlive_forged_frames_and_streams_never_wait_for_ever(tiny: Up, name: str) -> None:
    found = measure(tiny, name, FRAMES, random.Random(1))
    assert found["met"], found
