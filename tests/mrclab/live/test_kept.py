"""The history that a session keeps has a limited size, however long it runs."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mrclab.experiments.measure.faults import FaultRecord
from mrclab.live.card import IDLE_NS, MOST_NS, MOST_PACKETS, Card, Pieces
from mrclab.live.recording import KEPT_PACKETS_BYTES, KEPT_PAIRS, KeptPackets, Recording
from mrclab.live.sending import Flow

S = 1_000_000_000


def picture(rng: random.Random) -> dict[str, Any]:
    """Return a picture of a fault with as many packets as possible. Its numbers are hard to compress."""
    rows = [[rng.uniform(0, 1e6), rng.randrange(64), rng.randrange(1 << 24)] for _ in range(MOST_PACKETS)]
    return {"paths": ["plane 0, T1 1"] * 64, "broken": [], "rows": rows}


def test_packets_of_any_number_of_faults_take_no_more_than_a_bound() -> None:
    rng = random.Random(1)
    pictures = [picture(rng) for _ in range(4)]
    kept = KeptPackets()
    for number in range(300):
        for transport, one in zip(("mrc", "oblivious", "rocev2", "tcp"), pictures, strict=True):
            kept.put(number, transport, one)
            assert kept.held_bytes <= KEPT_PACKETS_BYTES
    assert kept.of(299, "mrc") == pictures[0]
    assert kept.of(0, "mrc") is None, "so many pictures are within the bound that nothing was tested"


def test_packets_that_are_shown_anew_take_the_place_of_the_old() -> None:
    kept = KeptPackets()
    for _ in range(10):
        kept.put(1, "mrc", {"rows": [1]})
    once = KeptPackets()
    once.put(1, "mrc", {"rows": [1]})
    assert kept.held_bytes == once.held_bytes


@given(
    st.lists(st.tuples(st.integers(0, 3 * S), st.integers(0, 50), st.booleans()), max_size=60),
    st.integers(0, 200),
)
def test_a_capture_keeps_what_is_wanted_and_never_more_than_its_bytes(
    turns: list[tuple[int, int, bool]], most: int
) -> None:
    pieces, now, taken = Pieces(most), 0, []
    for later, size, fault in turns:
        now += later
        if fault:
            pieces.since_ns = now if pieces.since_ns is None else None
        taken.append((now, bytes(size)))
        pieces.add(now, bytes(size))
        held = list(pieces.between(0, now))
        assert sum(map(len, held)) == pieces.held_bytes <= most
        since = now - IDLE_NS if pieces.since_ns is None else max(now - MOST_NS, pieces.since_ns)
        begin = min(since, now - IDLE_NS)
        wanted = [piece for t, piece in taken if t >= begin]
        if pieces.reach(begin):
            assert held[len(held) - len(wanted) :] == wanted


def test_a_recording_keeps_the_paths_of_so_many_pairs() -> None:
    recording = Recording({"evs": {"a>b": [[1]]}})
    for n in range(3 * KEPT_PAIRS):
        recording.note_paths(f"h{n}>h0", [[n]])
        recording.note_paths("a>b", [[n]])
    assert len(recording.about["evs"]) == KEPT_PAIRS + 1
    assert recording.about["evs"]["a>b"] == [[1]]


FAULT = FaultRecord("blackhole", "p0-t0-0:p0-t1-0", 10 * S, 10 * S + 1000)
FLOWS = {"mrc": (Flow("h0", "h2", 1, 2),), "rocev2": (Flow("h0", "h2", 3, 4),)}


def result(recovered_us: float | None, *, felt: bool = True, first_loss_us: float = 5.0) -> dict[str, Any]:
    return {"felt": felt, "first_loss_us": first_loss_us, "recovered_us": recovered_us, "lost": 3}


def test_captures_are_needed_until_all_that_felt_a_fault_have_recovered_or_given_up() -> None:
    card = Card(1, FAULT, "silent cut", flows=FLOWS)
    assert card.unsettled, "nobody has looked yet"
    card.due_s = []
    card.take({"mrc": result(80.0), "rocev2": result(None)}, whole=True)
    assert card.unsettled, "RoCEv2 still stands"
    card.gave_up.add("rocev2")
    assert not card.unsettled
    other = Card(2, FAULT, "silent cut", flows=FLOWS)
    other.due_s = []
    other.take({"mrc": result(None, felt=False), "rocev2": result(None, felt=False)}, whole=True)
    assert not other.unsettled, "a fault that nobody felt holds the captures"


def test_a_transport_that_gives_up_after_the_last_look_is_told_on_the_card() -> None:
    card, ended = (Card(number, FAULT, "loses 20 %", flows=FLOWS) for number in (1, 2))
    for one in (card, ended):
        one.take({"mrc": result(80.0), "rocev2": result(None)}, whole=True)
        one.due_s = []  # the last look was 11 s after the fault
    ended.close()  # its traffic was replaced
    for one in (card, ended):
        one.give_up("rocev2")
    assert card.to_dict()["results"]["rocev2"].get("gave_up")
    assert not ended.to_dict()["results"]["rocev2"].get("gave_up")


def test_a_recovery_long_after_the_fault_does_not_change_what_was_seen_at_its_beginning() -> None:
    card = Card(1, FAULT, "silent cut", flows=FLOWS)
    card.take({"rocev2": result(None, first_loss_us=5.0)}, whole=True)
    card.take({"rocev2": result(9e6, first_loss_us=7e6)}, whole=False)
    assert (card.results["rocev2"]["first_loss_us"], card.results["rocev2"]["recovered_us"]) == (5.0, 9e6)
    card.take({"rocev2": result(None, felt=False)}, whole=False)
    assert card.results["rocev2"]["felt"]


def test_a_fault_that_was_undone_and_that_nobody_felt_is_not_looked_at_for_ever() -> None:
    card = Card(1, FAULT, "silent cut", flows=FLOWS)
    card.undo(20 * S, 20 * S + 1000)
    nothing = {"mrc": result(None, felt=False), "rocev2": result(None, felt=False)}
    card.take(nothing, whole=True)
    assert card.due_s, "its first losses may be about to be seen"
    card.take(nothing, whole=True, over=True)
    assert not card.due_s


def test_of_several_faults_the_newest_that_shows_nothing_is_looked_at_first() -> None:
    cards = [Card(number, FAULT, "silent cut", flows=FLOWS) for number in (1, 2, 3)]
    cards[2].take({"mrc": result(80.0)}, whole=True)
    assert [card.number for card in sorted(cards, key=lambda card: card.urgency)] == [2, 1, 3]


def test_a_card_of_traffic_that_has_ended_is_not_worked_out_again() -> None:
    card = Card(1, FAULT, "silent cut", flows=FLOWS)
    card.close()
    card.undo(20 * S, 20 * S + 1000)
    assert card.undone
    assert not card.due
    assert not card.unsettled
