"""Paths computed by a hash equal the paths that the switch program takes with the controller's entries."""

import random
from collections import Counter

import pytest

from mrclab.controller.ecmp import routing_of
from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.mrc.packets import FrameOptions, prefix
from mrclab.hosts.nic.routes import hashed_paths
from mrclab.hosts.rdma.frames import BTH_LEN, UDP_LEN, UDP_PORT
from mrclab.switches.p4_model import Interpreter
from mrclab.switches.v1model.bmv2_json import read_program
from mrclab.topologies import Fabric, Switch, load_fabric
from mrclab.topologies.ev_paths import hashed_path
from tests.support.routed_model import WAYS, routed_profile, routed_rules
from tests.support.switch_kit import JSON

LAB = load_fabric("lab")
CONFIG = MrcConfig(ev_mode="ecmp", max_active_evs=128, spare_evs_per_plane=8)


def model_of(fabric: Fabric, switch: Switch) -> Interpreter:
    """Return the model of a switch with the routes that the controller writes."""
    routing = routing_of(fabric, switch)
    model = Interpreter(read_program(JSON.read_bytes()), routed_rules(routing))
    model.profiles[WAYS] = routed_profile(routing)
    return model


@pytest.mark.parametrize(("src", "dst"), [("h0", "h6"), ("h5", "h1"), ("h0", "h1")])
def test_switches_take_the_path_that_is_computed(src: str, dst: str) -> None:
    options = FrameOptions(UDP_PORT, 64, True)
    rng = random.Random(3)
    for plane in hashed_paths(LAB, src, dst, CONFIG, rng).planes:
        t0 = LAB.t0(plane.port, LAB.host(src).rack)
        model = model_of(LAB, t0)
        for path in plane.paths:
            head, _ = prefix(plane, path, options, 0, UDP_LEN + BTH_LEN + 4)
            ((port, _),) = model.run(1, head + bytes(BTH_LEN + 4))
            way = hashed_path(LAB, src, dst, path.ev, UDP_PORT)
            assert (way.plane, way.ev) == (plane.port, path.ev)
            assert t0.port_to(way.nodes[2]).number == port


def test_evs_of_all_planes_differ_and_spread_over_the_paths() -> None:
    planes = hashed_paths(LAB, "h0", "h6", CONFIG, random.Random(1)).planes
    evs = [path.ev for plane in planes for path in plane.paths]
    assert len(set(evs)) == len(evs) == 128 + 4 * 8
    assert all(path.outer_dst is None for plane in planes for path in plane.paths)
    used = Counter(hashed_path(LAB, "h0", "h6", ev, UDP_PORT).nodes for ev in evs)
    # 40 EVs over 4 uplinks in each plane: 10 each, plus at most 5 standard deviations of 2.7.
    assert len(used) == 16
    assert max(used.values()) < 24


def test_an_ev_of_a_plane_that_is_not_there_has_no_path() -> None:
    with pytest.raises(KeyError, match="plane 9"):
        hashed_path(LAB, "h0", "h6", 9 << 28, UDP_PORT)
