"""Transports by name, and attributes of queue pairs in JSON."""

import json
import random
import sys

import pytest

from mrclab.hosts.collectives.verbs_channel import open_channels
from mrclab.hosts.mrc import Endpoint as MrcEndpoint
from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.mrc.evs.ev_set import EvSet
from mrclab.hosts.nic.routes import nic_addresses, remote_paths
from mrclab.hosts.roce import DcqcnConfig, RoceConfig
from mrclab.hosts.roce import Endpoint as RoceEndpoint
from mrclab.hosts.schemes.aimd import Aimd
from mrclab.hosts.schemes.two_choices import TwoChoices
from mrclab.hosts.transports import DEPLOYED, KINDS, TRANSPORTS, find_transport, make_config, make_endpoint
from mrclab.hosts.transports.kinds import attributes_from_dict, attributes_to_dict
from mrclab.topologies import load_fabric

FABRIC = load_fabric("tiny")


@pytest.mark.parametrize("name", [name for name, t in TRANSPORTS.items() if t.core.has_nic])
def test_every_transport_makes_an_endpoint_whose_attributes_survive_json(name):
    config = make_config(name, FABRIC, "h0")
    endpoint = make_endpoint(nic_addresses(FABRIC, "h0"), config, random.Random(1))
    assert isinstance(endpoint, RoceEndpoint if TRANSPORTS[name].kind.startswith("rocev2") else MrcEndpoint)
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
    # A path has four links. Each carries a full frame of 4,222 bytes in 1.35 ms at 25 Mbit/s.
    assert 4 * 1_300_000 < thin.base_rtt_ns - lab.base_rtt_ns < 4 * 1_400_000


def test_what_a_transport_has_not_got_is_refused():
    with pytest.raises(ValueError, match="no transport 'rdma'"):
        make_config("rdma", FABRIC, "h0")
    with pytest.raises(ValueError, match="tcp uses the kernel's sockets"):
        make_config("tcp", FABRIC, "h0")
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


@pytest.mark.parametrize("kind", KINDS)
def test_a_channel_refuses_options_it_has_not_got(kind: str) -> None:
    with pytest.raises(TypeError, match="flavour"):
        open_channels(kind, FABRIC, "h0", [0], {"flavour": 1}, 1)


OWN = """
from dataclasses import replace
from mrclab.hosts.roce import RoceConfig
from mrclab.hosts.options import roce_config
from mrclab.hosts.roce import Endpoint
from mrclab.hosts.transports import KINDS, TRANSPORTS

class Config(RoceConfig):
    kind = "own_transport:KIND"

class Own(Endpoint):
    pass

KIND = replace(KINDS["rocev2"], name=Config.kind, config=lambda *a: roce_config(*a, of=Config), endpoint=Own)
TRANSPORT = replace(TRANSPORTS["rocev2"], kind=KIND.name, options={"qps": 2})
LOST = replace(TRANSPORT, kind="own_transport:NOTHING")
OTHER = 1
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_transport.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("own_transport", None)


def test_a_transport_can_be_outside_of_the_tree(own):
    transport = find_transport("own_transport:TRANSPORT")
    assert transport.channel_options == {"encapsulation": "plain", "qps": 2}
    config = make_config("own_transport:TRANSPORT", FABRIC, "h0")
    endpoint = make_endpoint(nic_addresses(FABRIC, "h0"), config, random.Random(1))
    assert type(endpoint).__name__ == "Own"
    attributes = endpoint.local_attributes(endpoint.create_qp())
    assert attributes_from_dict(json.loads(json.dumps(attributes_to_dict(attributes)))) == attributes


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("own_transport:OTHER", "no transport 'own_transport:OTHER': there are mrc"),
        ("own_transport:LOST", "own_transport has no NOTHING"),
        ("own_transport:NONE", "own_transport has no NONE"),
        ("no_such_module:A", "cannot import no_such_module"),
        ("", "no transport ''"),
    ],
)
def test_what_is_no_transport_is_refused_in_one_line(name, words, own):
    with pytest.raises(ValueError, match=words) as refused:
        find_transport(name)
    assert str(refused.value).count("\n") == 0


def test_a_peer_cannot_have_a_module_imported(own):
    with pytest.raises(ValueError, match="does not run"):
        attributes_from_dict({"transport": "own_transport:KIND", "ports": []})
    assert "own_transport" not in sys.modules
