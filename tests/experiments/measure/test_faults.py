from __future__ import annotations

from pathlib import Path

import pytest

from mrclab.experiments.measure.faults import (
    FaultRecord,
    load_faults,
    save_faults,
)
from mrclab.linux.errors import InputError
from mrclab.topologies import Fabric
from tests.support.chosen_links import choose_links, fabric_links_between


def test_the_middle_and_half_width_cover_the_interval() -> None:
    fault = FaultRecord("blackhole", "x", 101, 104)
    assert fault.middle_ns - fault.half_width_ns <= 101
    assert fault.middle_ns + fault.half_width_ns >= 104


def test_a_link_breaks_the_paths_over_it_and_only_those(lab: Fabric) -> None:
    paths = lab.paths("h0", "h6")
    for link in ("p1-t0-0:p1-t1-2", "p1-t0-3:p1-t1-2", "h0:p1-t0-0"):
        broken = {(p.plane, p.t1) for p in paths if FaultRecord("blackhole", link, 0, 0).breaks(p)}
        assert broken == ({(1, t) for t in range(4)} if link.startswith("h") else {(1, 2)})
    assert not any(FaultRecord("blackhole", "p1-t0-1:p1-t1-2", 0, 0).breaks(p) for p in paths)
    assert sum(FaultRecord("blackhole", "p2-t1-0", 0, 0).breaks(p) for p in paths) == 1


def test_one_direction_breaks_only_what_travels_that_way(lab: Fabric) -> None:
    paths = lab.paths("h0", "h6")

    def broken(where: str, direction: str) -> int:
        return sum(FaultRecord("blackhole", where, 0, 0, direction=direction).breaks(p) for p in paths)

    assert broken("p0-t0-0:p0-t1-1", "up") == 1
    assert broken("p0-t0-0:p0-t1-1", "down") == 0
    assert broken("p0-t0-3:p0-t1-1", "up") == 0
    assert broken("p0-t0-3:p0-t1-1", "down") == 1


def test_every_link_is_used_before_any_is_used_again(lab: Fabric) -> None:
    links = fabric_links_between(lab, "h0", "h6")
    assert len(links) == 32  # 16 paths with an uplink and a downlink each
    assert all("t1" in link and "t0-1" not in link and "t0-2" not in link for link in links)
    chosen = choose_links(links, 70, seed=3)
    assert len(chosen) == 70
    assert sorted(chosen[:32]) == sorted(chosen[32:64]) == sorted(links)
    assert chosen == choose_links(links, 70, seed=3)
    assert chosen != choose_links(links, 70, seed=4)
    with pytest.raises(ValueError, match="different racks"):
        choose_links((), 1, 1)


def test_the_fault_log_comes_back_as_it_was(tmp_path: Path) -> None:
    faults = (FaultRecord("blackhole", "a:b", 1, 2, 3, 4, "up"), FaultRecord("loss", "a:c", 5, 6))
    save_faults(tmp_path / "f.json", faults)
    assert load_faults(tmp_path / "f.json") == faults


@pytest.mark.parametrize("text", ["", "[", '[{"kind": "x"}]', '[{"kind": 1, "nonsense": 2}]', "3"])
def test_what_is_no_fault_log_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "f.json").write_text(text)
    with pytest.raises(InputError, match="not a fault log"):
        load_faults(tmp_path / "f.json")
