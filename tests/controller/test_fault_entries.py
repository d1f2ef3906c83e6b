"""The table entries that each kind of fault writes."""

import finsy as fy
import pytest

from mrclab.controller.fault_tables import TABLE_KINDS, fault_entries
from mrclab.controller.queues import byte_time
from mrclab.faults.kinds import Fault
from mrclab.topologies import LinkProfile

PROFILE = LinkProfile(10**9, 0, 4300)
BOTH = {"egress_fault.fault", "ingress_fault.fault"}


def entries(fault: Fault) -> list[fy.P4TableEntry]:
    return fault_entries(fault, 3, "up", PROFILE)


def params(fault: Fault) -> dict[str, object]:
    (action,) = {str(e.action.args): e.action for e in entries(fault)}.values()
    return dict(action.args)


@pytest.mark.parametrize("kind", TABLE_KINDS)
def test_one_entry_for_each_direction(kind: str) -> None:
    def tables(direction: str) -> set[str]:
        return {e.table_id for e in entries(Fault(kind, "a:b", direction, 0.5))}

    assert tables("both") == BOTH
    assert tables("up") == {"egress_fault.fault"}
    assert tables("down") == {"ingress_fault.fault"}


def test_one_frame_in_a_million_is_not_rounded_away() -> None:
    assert params(Fault("loss", "a:b", ratio=1e-6)) == {"ratio": 4295}
    assert params(Fault("loss", "a:b", ratio=1e-12)) == {"ratio": 1}
    assert params(Fault("corruption", "a:b", ratio=1.0)) == {"ratio": 2**32 - 1}


def test_losing_all_is_a_blackhole() -> None:
    assert params(Fault("loss", "a:b", ratio=1.0)) == {}


def test_a_rate_is_a_share_of_the_links_and_leaves_room_for_frames() -> None:
    assert params(Fault("rate", "a:b", ratio=0.5)) == {
        "byte_time": byte_time(500_000_000),
        "burst": 16 * 4300 * byte_time(500_000_000) // 65536,
    }
    assert params(Fault("rate", "a:b", ratio=1.0))["burst"] == 1024 * 1000
