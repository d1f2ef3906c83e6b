"""A receive window that becomes smaller under way (dynamic MPR), and a limit of the sender's own."""

from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.rdma.frames import expand
from tests.support.mrc_sim import Network, Sim, finish, frame_psn, is_data, stream

MTU = 64


def narrowed(to, own=None, **network):
    """Send 1000 packets over a lossy network to a receiver that narrows its window from 1024 to `to`.

    Return how far beyond the cumulative acknowledgement each packet was that was sent after the sender knew
    the small window.
    """
    config = MrcConfig(dynamic_mpr=True, mtu_bytes=MTU, cwnd_bytes=1 << 20, min_reorder_ns=1_000)
    sim = Sim(seed=6, config=config, network=Network(jitter_ns=2_000, **network))
    qp = sim.ends[0].qps[sim.qpns[0]]
    if own is not None:
        qp.limit_sending(own, 32)
    board, reach = qp.requester.board, []
    known = []

    def watch(source, port, frame):
        if source == 0 and is_data(frame):
            if qp.requester.mpr < config.mpr:
                known.append(True)
            if known:
                reach.append(expand(frame_psn(frame), board.una) - board.una)
        return False

    sim.unpredictable = watch
    sim.at(sim.now_ns + 10_000, lambda: sim.ends[1].set_mpr(sim.qpns[1], to))
    data, region = stream(sim, [1000 * MTU, 1000 * MTU])
    finish(sim, 2)
    assert bytes(region.view) == data
    assert reach
    return reach


def test_a_retransmission_waits_until_it_is_inside_a_window_that_has_become_smaller():
    assert max(narrowed(128, loss=0.1)) < 128


def test_the_senders_own_limit_outlasts_the_windows_that_the_peer_announces():
    assert max(narrowed(256, own=100)) < 100
