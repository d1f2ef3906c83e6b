"""Packets as Python objects give the same run as frames, to the nanosecond."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrclab.hosts.mrc import MrcConfig, SpecReading
from mrclab.hosts.mrc.packets import ControlPacket, DataPacket, SackPacket
from mrclab.hosts.rdma.events import SendCompleted
from mrclab.hosts.rdma.frames import BTH_OFFSET
from tests.support.mrc_sim import Network, Sim, ev_value, finish, stream
from tests.support.object_sim import ObjectSim

DEPLOYED = {
    "congestion": "nscc",
    "timestamps": True,
    "transport_ack": True,
    "reverse_evs": "set",
    "spare_evs_per_plane": 1,
    "max_active_evs": 6,
}
CONFIGS = [
    {},
    DEPLOYED,
    {**DEPLOYED, "reading": SpecReading(service_time=True), "dynamic_mpr": True, "mpr": 128},
    {"max_wimm": 2, "imm_waits_for_earlier": False, "always_skip_after": 2, "sack_threshold_bytes": 1},
    {"reading": SpecReading(oor_nack=False), "trim": False},
]


def transfer(kind, seed, network, config, lengths, faults):
    """Run a transfer in both directions under some faults. Return everything that can be observed."""
    sim = kind(seed=seed, planes=3, paths=4, config=MrcConfig(**config), network=Network(**network), qps=2)
    ends, net = sim.ends, sim.network
    if "ports" in faults:
        sim.at(1_400_000, lambda: ends[0].set_port_state(1, False, sim.now_ns))
        sim.at(4_000_000, lambda: ends[0].set_port_state(1, True, sim.now_ns))
    if "path" in faults:
        sim.at(1_200_000, lambda: net.dead.update({ev_value(0, 1), ev_value(2, 3)}))
        sim.at(30_000_000, net.dead.clear)
    if "probe" in faults:
        known = [counters.ev for counters in ends[1].ev_counters(sim.qpns[1])]
        sim.at(1_300_000, lambda: ends[1].probe_ev(sim.qpns[1], known[0], sim.now_ns))
    if "wrong key" in faults:
        sim.at(2_000_000, lambda: ends[1].post_write(sim.qpns[1], 99, bytes(5000), 1 << 40, 7))
    stream(sim, lengths, imm=seed % 2 == 0)
    stream(sim, lengths[:2], source=1)
    finish(sim, len(lengths))
    return {
        "events": sim.events,
        "frames": sim.frames,
        "now_ns": sim.now_ns,
        "queue pairs": [[end.qp_counters(qpn) for qpn in end.qps] for end in ends],
        "EVs": [[end.ev_counters(qpn) for qpn in end.qps] for end in ends],
        "ports": [
            ([state.sent for state in end.port_states], end.frames_received, end.drops) for end in ends
        ],
    }


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1 << 16),
    network=st.fixed_dictionaries(
        {
            "loss": st.sampled_from([0.0, 0.03]),
            "control_loss": st.sampled_from([0.0, 0.03]),
            "duplicate": st.sampled_from([0.0, 0.05]),
            "ce": st.sampled_from([0.0, 0.1]),
            "trim": st.sampled_from([0.0, 0.05]),
            "trim_last_hop": st.sampled_from([0.0, 0.05]),
            "port_rate_bps": st.sampled_from([0, 2_000_000_000]),
        }
    ),
    config=st.sampled_from(CONFIGS),
    lengths=st.lists(st.sampled_from([0, 1, 4095, 4096, 4097, 70_001]), min_size=1, max_size=8),
    faults=st.sets(st.sampled_from(["ports", "path", "probe", "wrong key"])),
)
def test_objects_do_what_frames_do(seed, network, config, lengths, faults):
    frames = transfer(Sim, seed, network, config, lengths, faults)
    objects = transfer(ObjectSim, seed, network, config, lengths, faults)
    for what, seen in frames.items():
        assert objects[what] == seen, what


@pytest.mark.parametrize("config", CONFIGS)
def test_an_object_says_what_its_frame_would(config):
    """An object and its frame must have the same length, addresses, EV, class and uSID container."""
    seen = []
    for kind in (Sim, ObjectSim):
        sim = kind(seed=9, config=MrcConfig(**config), network=Network(jitter_ns=0, control_loss=0.5))
        said = []
        transmit = sim._transmit

        def watch(source, port, packet, sim=sim, transmit=transmit, said=said):
            if isinstance(packet, bytes):
                # The receiver uses the flow of the inner header.
                flow = sim.ends[1 - source]._flows.check(packet[12:BTH_OFFSET])
                said.append((len(packet), flow.src, flow.dst, flow.ev, flow.dscp, packet[38:54]))
            else:
                flow = packet.flow
                said.append((packet.frame_bytes, flow.src, flow.dst, flow.ev, flow.dscp, flow.outer_dst))
            transmit(source, port, packet)

        sim._transmit = watch
        stream(sim, [70_001, 3, 0])
        sim.ends[1].probe_ev(sim.qpns[1], ev_value(1, 2), sim.now_ns)
        finish(sim, 3)
        assert len(sim.of(0, SendCompleted)) == 3
        seen.append(said)
    assert seen[0] == seen[1]


def test_objects_need_no_memory_of_their_own():
    sim = ObjectSim(seed=1, network=Network(jitter_ns=0))
    shared = bytearray(1 << 16)
    region = sim.ends[1].register_memory(shared)
    data = bytes(1 << 16)
    sim.ends[0].post_write(sim.qpns[0], 1, data, region.address, region.rkey)
    kinds = set()
    while batch := sim.taken_from(sim.ends[0]):
        kinds |= {type(packet) for _, packet in batch}
        for port, packet in batch:
            sim.hand_over(sim.ends[1], port, packet)
    assert kinds == {DataPacket}
    assert {type(packet) for _, packet in sim.taken_from(sim.ends[1])} <= {SackPacket, ControlPacket}
    assert shared == bytes(1 << 16)
    assert sim.ends[1].qp_counters(sim.qpns[1]).bytes_placed == 1 << 16
