"""The live page compares Clustermapper's verdicts with the present faults."""

from typing import Any

from mrclab.hosts.clustermapper.denylist import Denylist
from mrclab.hosts.clustermapper.inference import Verdict
from mrclab.live.health import judged, links_at
from mrclab.topologies import load_fabric

TINY = load_fabric("tiny")
LINK, OTHER = [link.name for link in TINY.links if link.kind == "fabric"][:2]
MS = 1_000_000


def seen(verdicts: list[Verdict], **faults: tuple[str, int | None]) -> dict[str, Any]:
    there = {place: {"kind": kind, "t_ns": t_ns} for place, (kind, t_ns) in faults.items()}
    return judged(TINY, Denylist.of(TINY, verdicts, 0), there)


def dead(place: str, t_ns: int = 30 * MS) -> Verdict:
    return Verdict(place, "dead", t_ns, t_ns - MS, 4)


def test_a_dead_link_that_was_cut_is_a_right_verdict_with_its_time() -> None:
    found = seen([dead(LINK)], **{LINK: ("blackhole", 10 * MS)})
    assert found["missing"] == []
    assert found["verdicts"] == [
        {"place": LINK, "cause": "dead", "ratio": 1.0, "right": True, "after_ms": 20.0}
    ]


def test_a_verdict_on_a_link_that_works_is_wrong_and_the_broken_one_is_missing() -> None:
    found = seen([dead(OTHER)], **{LINK: ("blackhole", 10 * MS)})
    assert (found["verdicts"][0]["right"], found["verdicts"][0]["after_ms"]) == (False, None)
    assert found["missing"] == [LINK]


def test_a_switch_that_is_called_dead_is_right_only_if_all_its_links_are() -> None:
    switch = LINK.split(":")[1]
    assert seen([dead(switch)], **{switch: ("switch-death", None)})["verdicts"][0] == {
        "place": switch,
        "cause": "dead",
        "ratio": 1.0,
        "right": True,
        "after_ms": None,
    }
    assert not seen([dead(switch)], **{LINK: ("blackhole", 0)})["verdicts"][0]["right"]


def test_the_links_of_a_dead_switch_are_right_one_by_one_and_a_delay_is_not_missed() -> None:
    switch = LINK.split(":")[1]
    found = seen([dead(LINK)], **{switch: ("switch-death", 0), OTHER: ("delay", 0)})
    assert found["verdicts"][0]["right"]
    assert found["missing"] == []


def test_each_kind_of_place_has_its_links() -> None:
    host = TINY.hosts[0]
    port = host.ports[0]
    assert links_at(TINY, port.ifname) == {f"{host.name}:{port.t0}"}
    assert links_at(TINY, "p0") == {link.name for link in TINY.links if link.plane == 0}
    assert links_at(TINY, "p0") > links_at(TINY, LINK.split(":")[0]) > links_at(TINY, LINK)
    assert links_at(TINY, "nowhere") == frozenset()
