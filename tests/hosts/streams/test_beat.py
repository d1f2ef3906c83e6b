from __future__ import annotations

from mrclab.hosts.streams.rounds import MOST_GAPS, Beat

MS = 1_000_000


def test_a_beat_returns_its_gaps_once() -> None:
    beat = Beat(1, 1)
    beat.note(5 * MS)  # there is no beat before the first turn
    beat.last_ns = 10 * MS
    beat.note(13 * MS)
    assert beat.take() == [(10 * MS, 13 * MS)]
    assert beat.take() == []


def test_of_many_gaps_the_longest_are_kept() -> None:
    beat = Beat(1, 1)
    beat.last_ns = MS
    for length in range(2, 2 * MOST_GAPS):
        beat.note(MS + length * MS)
    kept = beat.take()
    assert len(kept) == MOST_GAPS
    assert max(end for _, end in kept) == 2 * MOST_GAPS * MS
    assert min(end for _, end in kept) > MOST_GAPS * MS
