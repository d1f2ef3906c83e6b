"""Structured EVs: the switch program uses the uplink that an EV names, and hosts use exactly these EVs."""

import random
from functools import cache
from itertools import pairwise

import pytest

from mrclab.controller.ecmp import routing_of
from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.mrc.packets import FrameOptions, prefix
from mrclab.hosts.nic.routes import structured_remote_paths
from mrclab.hosts.rdma.frames import BTH_LEN, UDP_LEN, UDP_PORT
from mrclab.hosts.rdma.paths import Path, PlanePaths
from mrclab.p4src.contract import Drop
from mrclab.switches.p4_model import Interpreter
from mrclab.switches.v1model.bmv2_json import read_program
from mrclab.switches.v1model.program import Program
from mrclab.topologies import Fabric, Switch, build_fabric, load_fabric
from mrclab.topologies.ev_paths import structured_ev, structured_paths
from tests.support.routed_model import WAYS, routed_profile, routed_rules
from tests.support.switch_kit import JSON

LAB = load_fabric("lab")
GAPS = build_fabric(
    """
name: gaps
planes: 2
t0: 3
t1: 4
hosts: 3
links: {except: [{link: [p0-t0-0, p0-t1-0], absent: true}, {link: [p0-t0-2, p0-t1-3], absent: true}]}
""",
    "gaps.yaml",
)
CONFIG = MrcConfig(ev_mode="structured")
OPTIONS = FrameOptions(UDP_PORT, 64, True)
CASES = [(LAB, "h0", "h6"), (LAB, "h5", "h1"), (LAB, "h0", "h1"), (GAPS, "h0", "h2"), (GAPS, "h1", "h0")]


@cache
def program() -> Program:
    return read_program(JSON.read_bytes())


def model_of(fabric: Fabric, switch: Switch) -> Interpreter:
    """Return the model of a switch with the routes that the controller writes."""
    routing = routing_of(fabric, switch, structured=True)
    model = Interpreter(program(), routed_rules(routing))
    model.profiles[WAYS] = routed_profile(routing)
    return model


def frame(plane: PlanePaths, ev: int) -> bytes:
    head, _ = prefix(plane, Path(ev, None), OPTIONS, 0, UDP_LEN + BTH_LEN + 4)
    return bytes(head) + bytes(BTH_LEN + 4)


@pytest.mark.parametrize(("fabric", "src", "dst"), CASES)
def test_switches_take_the_path_that_the_ev_names(fabric: Fabric, src: str, dst: str) -> None:
    ways = {path.ev: path for path in structured_paths(fabric, src, dst)}
    for plane in structured_remote_paths(fabric, src, dst, random.Random(1)).planes:
        for path in plane.paths:
            nodes = ways[path.ev].nodes
            sent = frame(plane, path.ev)
            for here, after in pairwise(nodes[1:]):
                switch = fabric.switch(here)
                ((port, sent),) = model_of(fabric, switch).run(1, sent)
                assert switch.port_to(after).number == port


@pytest.mark.parametrize(("fabric", "src", "dst"), CASES)
def test_hosts_make_an_ev_for_each_path_and_no_other(fabric: Fabric, src: str, dst: str) -> None:
    planes = structured_remote_paths(fabric, src, dst, random.Random(1)).planes
    made = [(plane.port, path.ev) for plane in planes for path in plane.paths]
    assert made == [(path.plane, path.ev) for path in structured_paths(fabric, src, dst)]
    assert len({ev for _, ev in made}) == len(made) == len(fabric.paths(src, dst))
    assert all(path.outer_dst is None for plane in planes for path in plane.paths)


def test_an_ev_has_the_plane_the_uplink_and_a_source_port_of_roce() -> None:
    assert structured_ev(3, 5) == 3 << 28 | 5 << 18 | 0xC000
    assert structured_ev(15, 1023) == 0xFFFC_C000


def test_an_uplink_that_is_not_there_drops() -> None:
    model = model_of(GAPS, GAPS.switch("p0-t0-0"))
    plane = structured_remote_paths(GAPS, "h0", "h2", random.Random(1)).planes[0]
    for missing in (0, 4, 1023):
        assert model.run(1, frame(plane, structured_ev(0, missing))) == []
    assert model.counters["MrcIngress.drops", Drop.NOT_OUR_SID].packets == 3


def test_a_t0_reads_ten_bits_of_the_ev_and_no_others() -> None:
    model, rng = model_of(LAB, LAB.switch("p0-t0-0")), random.Random(2)
    plane = structured_remote_paths(LAB, "h0", "h6", rng).planes[0]
    for uplink in range(4):
        ports = set()
        for _ in range(20):
            ev = rng.getrandbits(4) << 28 | uplink << 18 | rng.getrandbits(18)
            ((port, _),) = model.run(1, frame(plane, ev))
            ports.add(port)
        assert ports == {LAB.switch("p0-t0-0").port_to(f"p0-t1-{uplink}").number}
