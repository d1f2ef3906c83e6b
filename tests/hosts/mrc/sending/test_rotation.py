"""The rotation of EVs when a NIC's ports are busy at times."""

import random

from mrclab.hosts.mrc.config import MrcConfig
from mrclab.hosts.mrc.evs.ev_set import EvSet
from tests.support.mrc_sim import remote_paths


def test_a_busy_port_costs_no_ev_its_turn():
    evs = EvSet(7, remote_paths(0, 1, 4, 16), MrcConfig(), random.Random(1), lambda event: None)
    rng, used = random.Random(1), {port: [] for port in range(4)}
    for _ in range(4 * 16 * 50):
        ev = evs.pick(sorted(rng.sample(range(4), rng.choice((1, 1, 2)))))
        used[ev.port].append(ev.value)
    for values in used.values():
        assert all(len(set(values[at : at + 16])) == 16 for at in range(0, len(values) - 15, 16))
