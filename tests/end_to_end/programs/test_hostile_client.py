"""A program on a fabric fills its rings with random entries; the host's other programs are not affected."""

from __future__ import annotations

import pytest

from tests.support.command import Up
from tests.support.hostile_client import attack
from tests.support.native_programs import built, needs_compiler

pytestmark = [pytest.mark.root, needs_compiler]
ENTRIES, MESSAGES = 3000, 200


def test_nonsense_in_rings_ends_its_own_sessions_alone(tiny: Up) -> None:
    """The benchmark benchmarks/hostile_client.py writes a million random entries."""
    with built(pair="pair") as programs:
        found = attack(tiny, programs["pair"], ENTRIES, 1, MESSAGES)
    assert found.entries >= ENTRIES
    assert found.ended == found.sessions > 0
    assert found.descriptors[1] <= found.descriptors[0]
