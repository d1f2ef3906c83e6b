"""The faults that a fabric accepts, and the error messages for other faults. No network is needed."""

import pytest

from mrclab.faults.kinds import KINDS, Fault, Place, checked
from mrclab.linux.errors import InputError
from mrclab.topologies import load_fabric

TINY = load_fabric("tiny")
LINK, SPINE, PORT, PLANE = "p0-t0-0:p0-t1-0", "p0-t1-0", "h0-eth0", "p0"
PLACES = {Place.LINK: LINK, Place.NIC_PORT: PORT, Place.SWITCH: SPINE, Place.PLANE: PLANE}


def a_fault(kind: str) -> Fault:
    return Fault(kind, PLACES[KINDS[kind].place])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_takes_a_place_of_its_sort(kind: str) -> None:
    assert checked(TINY, a_fault(kind)) == a_fault(kind)
    with pytest.raises(InputError, match=r"no (link|NIC port|switch|plane) 'p9'"):
        checked(TINY, Fault(kind, "p9"))


def test_a_link_may_be_named_from_either_end() -> None:
    assert checked(TINY, Fault("loss", "p0-t1-0:p0-t0-0", ratio=0.5)).where == LINK


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault("typo", LINK), "no fault kind 'typo': choose blackhole, "),
        (Fault("blackhole", LINK, ratio=0.5), "blackhole has no use for --ratio: it takes --direction"),
        (Fault("carrier", LINK, direction="up"), "it takes no options"),
        (Fault("loss", LINK, ratio=0.0), "above 0 and at most 1"),
        (Fault("loss", LINK, ratio=float("nan")), "above 0 and at most 1"),
        (Fault("delay", LINK, delay_ns=0), "longer than nothing"),
        (Fault("flap", LINK, period_ns=10**6, down_ns=10**5), "10 ms or longer"),
        (Fault("flap", LINK, period_ns=10**9, down_ns=10**9), "longer than the time down"),
        (Fault("flap", LINK, of="loss"), "a flap is of blackhole or carrier"),
        (Fault("flap", LINK, of="carrier", direction="up"), "both ways"),
        (Fault("switch-reboot", SPINE, down_ns=0), "longer than nothing"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(fault: Fault, said: str) -> None:
    with pytest.raises(InputError, match=said) as refusal:
        checked(TINY, fault)
    assert "\n" not in str(refusal.value)
