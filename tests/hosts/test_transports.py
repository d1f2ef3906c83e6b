"""Transports by name, and attributes of queue pairs in JSON."""

import json
import random

import pytest

from mrclab.hosts.attributes import attributes_from_dict, attributes_to_dict
from mrclab.hosts.collectives.transports import CONTEXTS, OPENERS, open_channels
from mrclab.hosts.mrc import Endpoint as MrcEndpoint
from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.mrc.evs.ev_set import EvSet
from mrclab.hosts.nic.routes import nic_addresses, remote_paths
from mrclab.hosts.roce import DcqcnConfig, RoceConfig
from mrclab.hosts.roce import Endpoint as RoceEndpoint
from mrclab.hosts.schemes.aimd import Aimd
from mrclab.hosts.schemes.two_choices import TwoChoices
from mrclab.hosts.transports import DATACENTER, DEPLOYED, TRANSPORTS, make_config, make_endpoint
from mrclab.topologies import load_fabric

FABRIC = load_fabric("tiny")


@pytest.mark.parametrize("name", TRANSPORTS)
def test_every_transport_makes_an_endpoint_whose_attributes_survive_json(name):
    config = make_config(name, FABRIC, "h0")
    endpoint = make_endpoint(nic_addresses(FABRIC, "h0"), config, random.Random(1))
    assert isinstance(endpoint, RoceEndpoint if TRANSPORTS[name].kind == "rocev2" else MrcEndpoint)
    attributes = endpoint.local_attributes(endpoint.create_qp())
    assert attributes_from_dict(json.loads(json.dumps(attributes_to_dict(attributes)))) == attributes


def test_options_go_on_top_and_dcqcn_knows_the_link():
    mrc = make_config("mrc", FABRIC, "h0", {"mpr": 128})
    assert mrc == MrcConfig(**DEPLOYED, mpr=128, nscc=mrc.nscc)
    assert mrc.nscc.link_bps == FABRIC.planes * 1_000_000_000
    assert make_config("oblivious", FABRIC, "h0") == MrcConfig(**DEPLOYED, ev_health=False, nscc=mrc.nscc)
    many = make_config("rocev2-16qp", FABRIC, "h0", {"timeout_exponent": 10})
    assert many == RoceConfig(qps=16, timeout_exponent=10, dcqcn=DcqcnConfig(line_rate_bps=1_000_000_000))
    assert make_config("rocev2", FABRIC, "h0", {"dcqcn": None}) == RoceConfig(dcqcn=None)
    slow = make_config("rocev2", FABRIC, "h0", {"dcqcn": {"line_rate_bps": 10_000_000, "g": 0.5}})
    assert slow == RoceConfig(dcqcn=DcqcnConfig(line_rate_bps=10_000_000, g=0.5))


@pytest.mark.parametrize(("topology", "active", "backups"), [("two-racks", 128, 32), ("lab", 16, 0)])
def test_mrc_as_deployed_uses_128_evs_and_backups_where_there_are_paths(topology, active, backups):
    fabric = load_fabric(topology)
    src, dst = fabric.far_ends()
    config = make_config("mrc", fabric, src)
    evs = EvSet(1, remote_paths(fabric, src, dst), config, random.Random(1), lambda event: None)
    share = active // fabric.planes
    assert [len(plane.active) for plane in evs.planes] == [share] * fabric.planes
    assert sum(len(plane.spares) for plane in evs.planes) == backups
    assert (config.congestion, config.timestamps, config.transport_ack) == ("nscc", True, True)
    assert config.reverse_evs == "set"


def test_nscc_knows_the_rate_and_the_rtt_of_its_topology():
    thin, lab = (make_config("mrc", load_fabric(name), "h0").nscc for name in ("thin", "lab"))
    assert (thin.link_bps, lab.link_bps) == (4 * 25_000_000, 4 * 1_000_000_000)
    # Four links of a path, each carries a full frame of 4,222 bytes in 1.35 ms at 25 Mbit/s.
    assert 4 * 1_300_000 < thin.base_rtt_ns - lab.base_rtt_ns < 4 * 1_400_000


def test_what_a_transport_has_not_got_is_refused():
    with pytest.raises(KeyError):
        make_config("rdma", FABRIC, "h0")
    with pytest.raises(TypeError, match="flavour"):
        make_config("rocev2", FABRIC, "h0", {"flavour": 1})
    with pytest.raises(TypeError, match="DCQCN has no option 'flavour'"):
        make_config("rocev2", FABRIC, "h0", {"dcqcn": {"flavour": 1}})


def test_an_endpoint_obeys_the_schemes_that_its_options_name():
    config = make_config("mrc", FABRIC, "h0", {"congestion": "aimd", "path_policy": "two-choices"})
    endpoint = make_endpoint(nic_addresses(FABRIC, "h0"), config, random.Random(1))
    far = make_endpoint(nic_addresses(FABRIC, "h1"), make_config("mrc", FABRIC, "h1"), random.Random(2))
    qpn = endpoint.create_qp()
    endpoint.connect(qpn, far.local_attributes(far.create_qp()), remote_paths(FABRIC, "h0", "h1"))
    qp = endpoint.qps[qpn]
    assert isinstance(qp.evs.policy, TwoChoices)
    assert isinstance(qp.requester.congestion, Aimd)


@pytest.mark.parametrize("kind", [*CONTEXTS, *OPENERS])
def test_a_channel_refuses_options_it_has_not_got(kind: str) -> None:
    with pytest.raises(TypeError, match="flavour"):
        open_channels(kind, FABRIC, "h0", [0], {"flavour": 1}, 1)


def test_datacenter_is_what_is_deployed_with_times_of_a_fabric_in_hardware():
    config = make_config("mrc", FABRIC, "h0", DATACENTER)
    assert isinstance(config, MrcConfig)
    assert DEPLOYED.items() <= DATACENTER.items()
    assert config.nscc.base_rtt_ns == 7_000
    assert config.nscc.link_bps == make_config("mrc", FABRIC, "h0").nscc.link_bps
    # A quarter of an RTT of 5 us decides, and 4,096 full packets last longer than any repair at 800 Gbit/s.
    assert config.min_reorder_ns < 5_000 * config.reorder_rtt_fraction
    assert config.mpr * config.mtu_bytes * 8 / 800 > 10 * 7_000
