"""On slow links, short packets overtake full ones. The full ones must not count as lost."""

import pytest

from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.mrc.events import EvRetired
from mrclab.hosts.rdma.events import PacketLost
from tests.support.mrc_sim import Network, Sim, stream

BYTE_NS = 160
"""The time for a byte on four links of 200 Mbit/s: a full packet takes 0.7 ms, a probe 25 us."""


class SlowWires(Sim):
    """Every switch of a path receives a whole frame before it sends the frame on."""

    def _put(self, target, port, frame):
        self.network.delay_ns = 5_000 + BYTE_NS * len(frame)
        super()._put(target, port, frame)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pause_ns", [0, 10_000_000])
def test_full_packets_on_slow_links_are_not_lost_to_short_ones(seed, pause_ns):
    """After bursts and pauses, short packets and probes must not make full packets count as lost."""
    config = MrcConfig(congestion="nscc", max_active_evs=8, reorder_memory_ns=1_000_000)
    network = Network(jitter_ns=150_000, port_rate_bps=200_000_000)
    sim = SlowWires(seed, planes=4, paths=2, config=config, network=network)
    for _ in range(30):
        before = sim.completed[0]
        stream(sim, [4, 16 * 4096])
        sim.run(1_000_000_000, until=lambda before=before: sim.completed[0] > before + 1)
        sim.run(pause_ns)
    assert sim.completed[0] == 60
    assert not sim.of(0, PacketLost)
    assert not sim.of(0, EvRetired)
