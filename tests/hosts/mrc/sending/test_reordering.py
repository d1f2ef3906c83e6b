"""The reordering window's times are options, so that it fits a fabric's speed."""

import pytest

from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.mrc.sending.recovery import ReorderingWindow
from mrclab.hosts.rdma.rtt import RttEstimator


def test_memory_and_quiet_scale_with_the_fabric():
    config = MrcConfig(
        min_reorder_ns=1000, initial_rtt_ns=0, reorder_memory_ns=1_000_000, reorder_quiet_ns=2_000_000
    )
    guard = ReorderingWindow(config, RttEstimator(0))
    guard.on_overtaken(0, 8000)
    guard.on_spurious(0)
    assert guard.ns(1_000_000) == 24_000
    assert guard.ns(1_000_001) == 24_000, "the period before still counts"
    assert guard.ns(2_000_001) == 12_000, "quiet halves it"
    assert guard.ns(2_000_002) == 1000, "forgotten"
    with pytest.raises(ValueError, match="reorder_quiet_ns must be positive"):
        MrcConfig(reorder_quiet_ns=0)
